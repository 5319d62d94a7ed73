"""Checks of a user's own functions, without LipCert's network or bounds.

leave_one_out(gradients, x, y, sensitivity=0.25)  # gradients(x, y) → arrays by name
batch_independence(function, x)                   # function(x) → one row for each example
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.audit.checks.run_check import roundoff
from lipcert.audit.records import Check, CheckReport, Verdict
from lipcert.errors import UsageError

_Array: TypeAlias = npt.NDArray[Any]
GradientFunction: TypeAlias = Callable[[_Array, _Array], Mapping[str, _Array]]
"""Examples and labels → the quantity that is noised, by name of the tensor."""
_WITHIN_ONE: Final = 2.0**-10
_LEFT_OUT: Final = Check(
    "LC313",
    "leave-one-out",
    "divide by a public constant and not by the number of examples; see which layer or loss mixes "
    "the examples of a batch",
)
MIXING: Final = Check(
    "LC316",
    "batch-independence",
    "normalise each example by itself (GroupNorm), or keep the layer in evaluation mode",
)


def leave_one_out(
    function: GradientFunction,
    x: _Array,
    y: _Array,
    sensitivity: float,
    examples: Iterable[int] | None = None,
) -> CheckReport:
    """Leave one out (LC313): how far a gradient function moves when one example is left out.

    Statement: f(x, y), the quantity that is noised, moves by at most Δ when one example is left
    out. Compared: ‖f(all) − f(all but i)‖, all tensors together, with Δ. This is what the
    definition of privacy compares.

    Threshold: suppose the claim holds, so that f is a sum of n terms of norm at most Δ each. Adding
    them in arithmetic of unit u, in any order, is off by at most γ_n·n·Δ, twice, and each term is
    itself rounded; so the computed difference is at most Δ·(1 + 2n·γ_n + 2^-10), the last term for
    rounding within one gradient. A larger difference is a violation. False alarms: none, except for
    a gradient that rounding changes by more than a thousandth. Only the examples that are tried can
    be caught.

    Args:
        examples: indices of those to try; None: all of them. The report names the worst.
    """
    chosen = list(range(len(x)) if examples is None else examples)
    if not chosen or not all(0 <= index < len(x) for index in chosen):
        raise UsageError(f"leave-one-out: give examples from 0 to {len(x) - 1}, at least one")
    whole = _copied(function(x, y))
    unit = max((roundoff(item) for item in whole.values()), default=2.0**-53)
    moves = {}
    for index in chosen:
        others = np.arange(len(x)) != index
        moves[index] = _distance(whole, function(x[others], y[others]))
    worst = max(moves, key=lambda index: moves[index])
    roundings = len(x) * unit
    explained = 1.0 + 2.0 * len(x) * roundings / (1.0 - roundings) + _WITHIN_ONE
    limit = sensitivity * explained
    over = [index for index in chosen if not moves[index] <= limit]
    message = (
        f"leaving one of {len(chosen)} examples out moves the gradient by {moves[worst]:.6g} at "
        f"most, {moves[worst] / sensitivity if sensitivity else math.inf:.4g} of the claimed "
        f"sensitivity {sensitivity:.6g}"
    )
    report = _LEFT_OUT.failed if over else _LEFT_OUT.passed
    return report(message, f"example {worst}", (moves[worst], sensitivity))


def _copied(gradients: Mapping[str, _Array]) -> dict[str, _Array]:
    """Copy the arrays: a function may return its buffers."""
    return {name: np.array(item) for name, item in gradients.items()}


def _distance(first: Mapping[str, _Array], second: Mapping[str, _Array]) -> float:
    """Return the Euclidean distance over all tensors; inf if one is not finite, so that it never
    passes."""
    if first.keys() != second.keys():
        raise UsageError("leave-one-out: the gradient function returns new names on each call")
    parts = [
        np.linalg.norm((first[name].astype(np.float64) - second[name]).reshape(-1))
        for name in first
    ]
    total = math.hypot(*(float(part) for part in parts))
    return total if math.isfinite(total) else math.inf


def batch_independence(function: Callable[[_Array], _Array], x: _Array) -> CheckReport:
    """Batch independence (LC316): whether examples of a batch influence each other.

    Statement: row i of f(x) depends on x_i alone. Compared: row i of f(x) and of f(x'), x' having
    the same i-th example at the same place and the others exchanged; bit for bit. Threshold: none.
    Both batches have one shape, so that the same kernels do the same operations on row i in the
    same order, whatever the numbers in other rows are. False alarms: none. A function that does not
    repeat itself (dropout, atomic additions) is recognised by calling it twice, and makes the check
    inconclusive.
    """
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
        return replace(MIXING.passed(message), verdict=Verdict.INCONCLUSIVE)
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
        return MIXING.passed(message)
    return MIXING.failed(
        f"row {worst} moved by {difference:.4g} when only other examples of the batch changed",
        f"example {worst}",
        (difference, 0.0),
    )
