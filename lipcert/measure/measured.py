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


_CLIP_ROOM = 2.0**-19


@dataclass(frozen=True, slots=True)
class Clip:
    """g ↦ C·g/max(‖g‖, C), C the radius, which may be inf; with a stability γ, g ↦ C·g/(‖g‖ + γ)
    (Bu, Wang, Zha and Karypis, Automatic clipping, NeurIPS 2023). The result is at most C long."""

    radius: float
    stability: float | None = None

    def factors(self, norms: FloatArray) -> FloatArray:
        """Return the factor for each gradient of these norms."""
        if self.radius == math.inf:
            return np.ones(len(norms))
        if self.stability is None:
            return np.asarray(self.radius / np.maximum(norms, self.radius), dtype=np.float64)
        sums = norms + self.stability
        return np.divide(self.radius, sums, out=np.zeros_like(sums), where=sums > 0.0)

    def measured(self, found: Measured) -> Measured:
        """Return the norms after the clip; norms that are not finite stay so.

        Proof: t ↦ min(t, C) moves by no more than t, and t ↦ C·t/(t + γ) by no more than C/(s + γ)
        times as much, s the smallest t there is.
        """
        norms, error = found.norm, found.error
        if self.stability is None:
            short = np.minimum(norms, self.radius)
        else:
            short = norms * self.factors(norms)
            error = error * self.factors(np.maximum(norms - error, 0.0))
        return Measured(np.where(np.isfinite(norms), short, norms), error)

    def slack(self, found: Measured) -> float:
        """Return what a sum loses at most if clips divide by norm + error, and leave some room
        below C.

        Proof: n·(C/n − C/(n + e)) ≤ e·C/n; and n − C·n/(n + e) ≤ e where C lies between the ends;
        with n + γ in place of a divisor n the loss is less. A factor with room for its rounding in
        float32, 2^-20 here and 1e-6/C in a common library, takes at most the share _CLIP_ROOM of C.
        """
        if self.radius == math.inf:
            return 0.0
        lost = found.error * self.factors(found.norm) + _CLIP_ROOM * self.radius
        moved = self.stability is not None or found.norm + found.error > self.radius
        return float(np.sum(lost[np.broadcast_to(moved, lost.shape)]))
