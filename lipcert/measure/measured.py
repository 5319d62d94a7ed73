"""Measured norms: those of one batch, in which precision, and what they imply for a bound.

Input: norms with their errors, the precision they were measured in, and a bound. Output: records of
float64 arrays with one entry per example; which examples are within the bound, which violate it,
and which are undecided. Invariants: a norm computed from given tensors lies within `error` of their
exact norm; only float64 says "violating", and only where the whole interval of an example lies
above the bound.

A measured norm n of a tensor is taken to be right up to its `error` (what computing the norm of
given tensors rounds) plus margin·n + cancelled·N + floor, which stands for what evaluating the
network rounds; N is the largest norm of the same example. These are constants, not a proof about
one network:

- Backpropagation in float64 loses at most about depth × terms × 2^-53 of the sizes of what is
  added: 2^-33 for a hundred layers with sums of ten thousand terms if every rounding points the
  same way, and about 2^-43 as roundings fall. Only what cancels to less than a millionth of its
  terms could then be moved by the share 2^-20, and what cancels as a whole leaves about 2^-44·N.
  In turn, a network whose bound is exceeded by less than a millionth is not called a violation.
- Every other arithmetic is a filter in front of float64: it settles only what lies within a bound
  by its margin, and says of nothing that it violates. Losses are computed in float64 all the same,
  since their gradients cancel where a network is certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import final

import numpy as np
import numpy.typing as npt

from lipcert.core.program import FloatArray


@final
class Precision(Enum):
    """Arithmetic of products; sums are accumulated in float32 or better."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    """float32 storage whose products read 10 bits of the fraction"""
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def unit(self) -> float:
        """Largest relative error of one rounding of a stored result or a read operand."""
        bits = {"float64": 52, "float32": 23, "tf32": 10, "bfloat16": 7, "float16": 10}
        return float(2.0 ** -bits[self.value])

    @property
    def margin(self) -> float:
        """The relative error of a measured norm that evaluating the network may cause."""
        return {"float64": 2.0**-20, "float32": 2.0**-7}.get(self.value, 0.5)

    @property
    def floor(self) -> float:
        """What may be hidden where numbers underflow, far above the smallest normal number."""
        return {"float64": 2.0**-400, "float16": 2.0**-7}.get(self.value, 2.0**-60)

    @property
    def cancelled(self) -> float:
        """The share of the largest norm of an example that may be left of what cancels as a whole.

        Where a right bound is 0, say of the gradient below a layer of equal rows, float64 leaves
        that. A filter needs none: what it leaves is replayed.
        """
        return 2.0**-44 if self.decides else 0.0

    @property
    def decides(self) -> bool:
        """Whether a norm above its bound violates it in this precision; otherwise float64
        decides."""
        return self is Precision.FLOAT64

    def reached(self, bound: float) -> float:
        """The largest norm that may be measured where a bound of real arithmetic is right."""
        return bound / (1.0 - self.margin)


_TINY = 2.0**-1060
"""covers what underflows"""
_OUTWARD = 1.0 + 2.0**-40
"""covers the roundings of the comparison itself: a few additions in float64"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Norms of one tensor, one for each example: |norm − truth| ≤ error.  # [examples] each

    error covers what computing the *norm* rounds, given the tensors it is the norm of; NaN and
    infinity stand for themselves and are never hidden.
    """

    norm: FloatArray
    error: FloatArray


@final
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


@final
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
    """Where a norm n ± e lies with respect to the bound B, with the slack s of the precision.

    A filter asks for room: n + s + e ≤ B is within, all else undecided. float64 decides, in favour
    of the bound: n − s + e ≤ B is within, so that a norm that attains its bound (a clip, a
    saturated softmax, a loss of constant slope) is within; n − s − e > B violates, and so does a
    norm that is not finite. Only the rounding of the norm's own computation then leaves an example
    undecided. cap: what the truth cannot exceed, because the run clips it. largest: see
    `largest_of`.
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
    """The largest finite norm of each example, 0 of none: the scale of what may have cancelled."""
    largest: FloatArray | float = 0.0
    for part in parts:
        largest = np.maximum(largest, np.where(np.isfinite(part.norm), part.norm, 0.0))
    return largest


def joint(parts: list[Measured]) -> Measured:
    """The norm of several tensors together: √Σ n², off by at most √Σ e².

    Proof: the triangle inequality for the vector of norms. Each of the k hypotenuses is off by two
    units in the last place at most, and neither overflows nor underflows before its result does.
    """
    norm: FloatArray = reduce(np.hypot, [part.norm for part in parts])
    error: FloatArray = reduce(np.hypot, [part.error for part in parts])
    rounding = len(parts) * 2.0**-51
    return Measured(norm, error * (1.0 + 2.0 * rounding) + norm * (2.0 * rounding) + _TINY)
