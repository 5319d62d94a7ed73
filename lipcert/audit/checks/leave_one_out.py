"""Leave one out (LC313): what a gradient function of the user's own makes of one example less.

    leave_one_out(gradients, x, y, sensitivity=0.25)  # gradients(x, y) → arrays by name

Statement: f(x, y), the quantity that is noised, moves by at most Δ when one example is left out.
Compared: ‖f(all) − f(all but i)‖, all tensors together, with Δ. This is what the definition of
privacy compares, with nothing of LipCert's network, bounds or replay in between.

Threshold: suppose the claim holds, so that f is a sum of n terms of norm at most Δ each. Adding
them in arithmetic of unit u, in any order, is off by at most γ_n·n·Δ, twice, and each term is
itself rounded; so the difference computed is at most Δ·(1 + 2n·γ_n + 2^-10), the last for rounding
within one gradient. What exceeds this violates. False alarms: none but a gradient that rounding
changes by more than a thousandth. Only the examples that are tried can be caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.audit.records import Check, CheckReport
from lipcert.errors import UsageError

_Array: TypeAlias = npt.NDArray[Any]
GradientFunction: TypeAlias = Callable[[_Array, _Array], Mapping[str, _Array]]
"""examples and labels → the quantity that is noised, by name of the tensor"""
_WITHIN_ONE: Final = 2.0**-10
_CHECK: Final = Check(
    "LC313",
    "leave-one-out",
    "divide by a public constant and not by the number of examples; see which layer or loss mixes "
    "the examples of a batch",
)


def leave_one_out(
    function: GradientFunction,
    x: _Array,
    y: _Array,
    sensitivity: float,
    examples: Iterable[int] | None = None,
) -> CheckReport:
    """Try examples (all of them, unless told which); the report names the worst."""
    chosen = list(range(len(x)) if examples is None else examples)
    if not chosen or not all(0 <= index < len(x) for index in chosen):
        raise UsageError(f"leave-one-out: give examples from 0 to {len(x) - 1}, at least one")
    whole = _copied(function(x, y))
    unit = max((_unit(item) for item in whole.values()), default=2.0**-53)
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
    told = _CHECK.failed if over else _CHECK.passed
    return told(message, f"example {worst}", (moves[worst], sensitivity))


def _copied(gradients: Mapping[str, _Array]) -> dict[str, _Array]:
    """Arrays of their own: a function may return its buffers."""
    return {name: np.array(item) for name, item in gradients.items()}


def _distance(first: Mapping[str, _Array], second: Mapping[str, _Array]) -> float:
    """Euclidean, over all tensors; inf where one is not finite, so that it is never within."""
    if first.keys() != second.keys():
        raise UsageError("leave-one-out: the gradient function returns other names every time")
    parts = [
        np.linalg.norm((first[name].astype(np.float64) - second[name]).reshape(-1))
        for name in first
    ]
    total = math.hypot(*(float(part) for part in parts))
    return total if math.isfinite(total) else math.inf


def _unit(array: _Array) -> float:
    return float(np.finfo(array.dtype).eps) / 2.0 if array.dtype.kind == "f" else 2.0**-53
