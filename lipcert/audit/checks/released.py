"""Released (LC314, LC311): whether what the optimizer applied is what was noised, and one thing.

Statement: all ranks of a step hold one noised gradient: if each adds noise of its own, every rank
makes a release, and together they hide less than one. At every step that records both, the applied
gradient of every tensor is the noised one times one positive number, the same for all tensors of
the step (a division by the batch size, say).
That number is not 1 over the size of the batch at hand, which is private where sizes are random.
Compared: noised gradients of ranks, bit for bit; the applied gradients a with c·n, n the noised
ones, c = ⟨a, n⟩/⟨n, n⟩ over all tensors.

Threshold: multiplying n by a number and storing the result is off by at most three roundings of
every entry, and c by no more than that; so ‖a − c·n‖ ≤ 8·u·‖a‖ for each tensor, u the unit of the
coarser type of the two. A division by the size is one where c times the number of examples is 1, up
to 2^-18, at every step, and two steps have different sizes. False alarms: none, unless the run
changes gradients after the noise in another way (a clip of the noised gradient, a weight decay),
which is harmless, and cannot be distinguished from a release without noise: so a difference is a
violation only where a is closer to the clean gradient than to the noised one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.audit.checks.noise import storage_unit
from lipcert.audit.checks.recorded_run import FEW, Finding, RecordedRun, run_check
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.audit.trace.blobs import Blob
from lipcert.audit.trace.records import Step
from lipcert.upper import FloatArray

_CHECK: Final = Check(
    "LC314", "release", "let the optimizer take the noised gradient, and record what it takes"
)
_DIVISOR: Final = Check("LC311", "release", "divide by a public constant, the expected batch size")
_ROUNDINGS: Final = 8.0
_AS_ONE: Final = 2.0**-18
_Tensors = Mapping[str, npt.NDArray[Any]]


@run_check(_CHECK, most=FEW)
def released(run: RecordedRun) -> Iterator[Finding]:
    """A report for every step that applied something else than what was noised, or a pass."""
    compared = 0
    yield from _several(run)
    yield from _by_size(run)
    for step in run.steps:
        clean, noised, applied = (
            {} if blob is None else blob.tensors()
            for blob in (step.gradients.clean, step.gradients.noised, step.gradients.applied)
        )
        if noised and applied:
            compared += 1
            yield from _faults(run, step, clean, noised, applied)
    if compared:
        yield _CHECK.passed(
            f"the optimizer applied the noised gradients at {compared} recorded steps"
        )
    else:
        yield "no step records the noised gradient and the one that was applied"


def _several(run: RecordedRun) -> Iterator[CheckReport]:
    """Steps of which two ranks hold different noised gradients."""
    first: dict[int, tuple[str, Blob]] = {}
    for step in run.steps:
        noised = step.gradients.noised
        if noised is None:
            continue
        name, known = first.setdefault(step.number, (run.name(step), noised))
        if known != noised:
            yield _CHECK.failed(
                f"{name} and {run.name(step)} hold different noised gradients: every rank makes a "
                "release of its own, but only one was accounted for",
                run.name(step),
                remedy="draw the noise in one rank, and apply what it noised in all of them",
            )


def _by_size(run: RecordedRun) -> Iterator[CheckReport]:
    """Where every sum was divided by the number of its own examples, those of all ranks, after
    the noise."""
    totals = Counter[int]()
    for step in run.steps:
        totals[step.number] += sum(batch.examples or 0 for batch in step.batches)
    sizes: dict[int, int] = {}
    for step in run.steps:
        noised, applied = step.gradients.noised, step.gradients.applied
        size = totals[step.number]
        if noised is None or applied is None or not size:
            continue
        before, after = noised.tensors(), applied.tensors()
        names = before.keys() & after.keys()
        factor = _factor([(_exact(after[name]), _exact(before[name])) for name in names])
        if abs(factor * size - 1.0) > _AS_ONE:
            return
        sizes.setdefault(size, step.number)
    if len(sizes) > 1:
        least, most = min(sizes), max(sizes)
        yield _DIVISOR.failed(
            f"after the noise gradients are divided by {least} at step {sizes[least]} and by "
            f"{most} at step {sizes[most]}, the size of the batch at hand: a divisor must be one "
            "public constant (LC401)",
            f"step {sizes[least]}",
            (least, most),
        )


def _faults(
    run: RecordedRun, step: Step, clean: _Tensors, noised: _Tensors, applied: _Tensors
) -> Iterator[CheckReport]:
    names = sorted(noised.keys() & applied.keys())
    units = [storage_unit(step, item[name]) for item in (noised, applied) for name in names]
    unit = max(units, default=0.0)
    wide = {name: (_exact(applied[name]), _exact(noised[name])) for name in names}
    factor = _factor(list(wide.values()))
    for name, (a, n) in wide.items():
        off, length = _norm(a - factor * n), _norm(a)
        if off <= _ROUNDINGS * unit * length:
            continue
        plain = name in clean and _is_closer(a, _exact(clean[name]), n)
        what = "the gradient without its noise"
        yield _CHECK.failed(
            f"{run.name(step)}, {name}: the optimizer applied "
            f"{what if plain else 'something else than the noised gradient'}",
            f"{run.name(step)}, {name}",
            (off, _ROUNDINGS * unit * length),
            verdict=Verdict.VIOLATION if plain else Verdict.INCONCLUSIVE,
        )


def _is_closer(applied: FloatArray, clean: FloatArray, noised: FloatArray) -> bool:
    """Whether the direction of what was applied is rather that of the clean gradient."""
    return _distance(applied, clean) < _distance(applied, noised)


def _distance(a: FloatArray, b: FloatArray) -> float:
    """The distance from a to the closest positive multiple of b."""
    square = float(np.vdot(b, b))
    return _norm(a - max(0.0, float(np.vdot(a, b)) / square if square else 0.0) * b)


def _factor(pairs: list[tuple[FloatArray, FloatArray]]) -> float:
    """c for pairs (a, n)."""
    square = sum(float(np.vdot(n, n)) for _, n in pairs)
    product = sum(float(np.vdot(a, n)) for a, n in pairs)
    return product / square if square else 1.0


def _exact(recorded: npt.NDArray[Any]) -> FloatArray:
    return np.asarray(recorded, dtype=np.float64)


def _norm(array: FloatArray) -> float:
    return float(np.linalg.norm(array.reshape(-1)))
