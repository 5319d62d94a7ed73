"""Measured norms: the norms of one batch, their precision, and what they imply for a bound.

From norms with their errors, their precision and a bound, `decide` finds which examples are within
the bound, which violate it, and which are undecided. All records hold float64 arrays with one entry
per example. Invariants: a norm computed from given tensors lies within `error` of their exact norm;
only float64 gives "violating", and only if the whole interval of an example lies above the bound.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from lipcert.core.program import FloatArray
from lipcert.measure.precision import Precision

_TINY = 2.0**-1060
"""Covers underflow."""
_OUTWARD = 1.0 + 2.0**-40
"""Covers the roundings of the comparison itself: a few additions in float64."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Norms of one tensor, one for each example: |norm − truth| ≤ error.  # [examples] each

    error covers the rounding in computing the *norm* of the given tensors; NaN and infinity are
    kept, never hidden.
    """

    norm: FloatArray
    error: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class BatchNorms:
    """Everything measured in one batch.

    losses: of each example, float64. parameters: ‖∂loss/∂θ‖ by name of the parameter, all uses
    together. values: ‖value‖, and cotangents: ‖∂loss/∂value‖, by name of the value in the graph.
    """

    losses: FloatArray
    parameters: Mapping[str, Measured]
    values: Mapping[str, Measured]
    cotangents: Mapping[str, Measured]


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """For each example, whether its norm violates the bound, or is undecided.  # [examples] each"""

    violating: npt.NDArray[np.bool_]
    undecided: npt.NDArray[np.bool_]


def decide(
    measured: Measured,
    bound: float,
    precision: Precision = Precision.FLOAT64,
    cap: float = math.inf,
    largest: FloatArray | float = 0.0,
) -> Decision:
    """Compare a norm n ± e with the bound B, given the slack s of the precision.

    A filter demands a margin: n + s + e ≤ B is within, all else undecided. float64 decides, in
    favour of the bound: n − s + e ≤ B is within, so that a norm that attains its bound (a clip, a
    saturated softmax, a loss of constant slope) is within; n − s − e > B violates, and so does a
    norm that is not finite. Then only the rounding of the norm's own computation leaves an example
    undecided.

    Args:
        cap: what the truth cannot exceed, because the run clips it.
        largest: see `largest_of`.
    """
    norm, error = measured.norm, measured.error * _OUTWARD
    with np.errstate(invalid="ignore", over="ignore"):
        slack = precision.margin * norm + precision.cancelled * largest + precision.floor
        if not precision.decides:
            within = np.minimum((norm + slack + error) * _OUTWARD, cap) <= bound
            within &= np.isfinite(norm)
            return Decision(np.zeros_like(within), ~within)
        least = norm - slack
        violating = (least - error > bound * _OUTWARD) | ~np.isfinite(norm)
        within = ~violating & (np.minimum(least + error, cap) <= bound)
    return Decision(violating, ~(violating | within))


def largest_of(parts: Iterable[Measured]) -> FloatArray | float:
    """Return the largest finite norm of each example, or 0: the scale of what may have
    cancelled."""
    largest: FloatArray | float = 0.0
    for part in parts:
        largest = np.maximum(largest, np.where(np.isfinite(part.norm), part.norm, 0.0))
    return largest


def joint(parts: list[Measured]) -> Measured:
    """Return the norm of several tensors together: √Σ n², off by at most √Σ e².

    Proof: the triangle inequality for the vector of norms. Each of the k hypotenuses is off by at
    most two units in the last place, and neither overflows nor underflows before its result does.
    """
    norm: FloatArray = reduce(np.hypot, [part.norm for part in parts])
    error: FloatArray = reduce(np.hypot, [part.error for part in parts])
    rounding = len(parts) * 2.0**-51
    return Measured(norm, error * (1.0 + 2.0 * rounding) + norm * (2.0 * rounding) + _TINY)
