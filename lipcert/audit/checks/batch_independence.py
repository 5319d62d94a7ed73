"""Batch independence (LC316): whether examples of a batch influence each other.

    batch_independence(function, x)  # function(x) → one row for each example

Statement: row i of f(x) depends on x_i alone. Compared: row i of f(x) and of f(x'), x' having the
same i-th example at the same place and the others exchanged; bit for bit. Threshold: none. Both
batches have one shape, so that the same kernels do the same operations on row i in the same order,
whatever the numbers in other rows are. A function that does not repeat itself (dropout, atomic
additions) is told by calling it twice, and leaves the check inconclusive. From a recorded run: the
stored statistics of a layer that normalises by its batch move, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.audit.checks.subject import Checked, RecordedRun
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.blobs import Blob
from lipcert.errors import UsageError

_STATISTICS: Final = (".running_mean", ".running_var")
_Array = npt.NDArray[Any]
_CHECK: Final = Check(
    "LC316",
    "batch-independence",
    "normalise each example by itself (GroupNorm), or keep the layer in evaluation mode",
)


def batch_independence(function: Callable[[_Array], _Array], x: _Array) -> CheckReport:
    """Rows of two batches that share one example each time."""
    count = len(x)
    if count < 2:
        raise UsageError("batch-independence: give at least two examples")
    first, second = np.array(function(x)), np.array(function(x))
    if first.shape[:1] != (count,):
        raise UsageError(
            f"batch-independence: the function returns shape {first.shape}, not a row for each of "
            f"{count} examples"
        )
    if not np.array_equal(first, second, equal_nan=True):
        message = "the function gives another result when it is called again; is dropout active?"
        return replace(_CHECK.passed(message), verdict=Verdict.INCONCLUSIVE)
    worst, difference = 0, 0.0
    for index in range(count):
        others = np.roll(x, 1, axis=0)
        others[index] = x[index]
        row = np.array(function(others))[index]
        if not np.array_equal(first[index], row, equal_nan=True):
            moved = float(np.linalg.norm((first[index].astype(np.float64) - row).reshape(-1)))
            if not moved <= difference:
                worst, difference = index, moved
    if difference == 0.0:
        message = f"none of {count} rows changed when the other examples of the batch did"
        return _CHECK.passed(message)
    return _CHECK.failed(
        f"row {worst} moved by {difference:.4g} when only other examples of the batch changed",
        f"example {worst}",
        (difference, 0.0),
    )


def moving_statistics(run: RecordedRun) -> Checked:
    """Statistics of normalisation layers that are not the same at every recorded place."""
    first: dict[str, tuple[str, _Array]] = {}
    for where, blob in _weights(run):
        for name, item in blob.tensors().items():
            if not name.endswith(_STATISTICS):
                continue
            known, value = first.setdefault(name, (where, item))
            if not np.array_equal(value, item, equal_nan=True):
                report = _CHECK.failed(
                    f"{name!r} moved between {known} and {where}: the layer normalises by the "
                    "statistics of its batch, so that examples influence each other, and stores "
                    "them without noise",
                    where,
                    (float(np.linalg.norm(item.astype(np.float64) - value)), 0.0),
                )
                return Checked((report,))
    return Checked()


def _weights(run: RecordedRun) -> Iterator[tuple[str, Blob]]:
    for step in run.steps:
        if step.weights_before is not None:
            yield run.name(step), step.weights_before
        if step.weights_after is not None:
            yield f"after {run.name(step)}", step.weights_after
