"""Decisions: measured norms against a bound, example by example.

What enters: norms with their intervals, and a bound. What leaves: which examples are within, which
violate it, and which cannot be told. Invariant: "within" and "violating" are only said where the
whole interval of an example lies on that side, up to the stated resolution for "within"; what is
not finite violates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import final

import numpy as np
import numpy.typing as npt

from lipcert.audit.measured import Measured
from lipcert.upper import FloatArray

_TINY = 2.0**-1060
"""covers what underflows"""
_NOTHING = 2.0**-400
"""far above what squares that underflow hide in float64, far below everything else"""
_OUTWARD = 1.0 + 2.0**-40
"""covers the roundings of the comparison itself: a few additions in float64"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """For each example, whether its norm violates the bound, or is undecided.  # [examples] each"""

    violating: npt.NDArray[np.bool_]
    undecided: npt.NDArray[np.bool_]

    def equals(self, other: Decision) -> bool:
        """Whether it says the same of every example."""
        return np.array_equal(self.violating, other.violating) and np.array_equal(
            self.undecided, other.undecided
        )


def decide(
    measured: Measured,
    bound: float,
    drift: float,
    cap: float = math.inf,
    resolution: float = 0.0,
) -> Decision:
    """Where the interval norm ± (error + drift) lies with respect to the bound.

    drift: by how much the arithmetic that was measured in may exceed a right bound of real
    arithmetic; inf where that is not known, which leaves everything undecided but what is not
    finite. cap: what the truth cannot exceed, because the run clips it. resolution: share of the
    bound above it that still counts as within, if the interval does not lie above the bound as a
    whole; where there is one, an interval below 2^-400 is within any bound, 0 included.
    """
    width = (measured.error + drift) * _OUTWARD
    with np.errstate(invalid="ignore"):
        lower = (measured.norm - width) / _OUTWARD
        upper = np.minimum((measured.norm + width) * _OUTWARD, cap)
        violating = (lower > bound) | ~np.isfinite(measured.norm)
        limit = max(bound * (1.0 + resolution), _NOTHING) if resolution > 0.0 else bound
        within = ~violating & (upper <= limit)
    return Decision(violating, ~(violating | within))


def decided(
    measured: Measured,
    bound: float,
    drift: Callable[[], float],
    cap: float = math.inf,
    resolution: float = 0.0,
) -> Decision:
    """What `decide` says with drift(), which is not asked where every drift gives the same.

    Proof: as the drift grows from 0 to inf, the interval's ends move apart, so that no example
    begins to violate. Where the same ones violate at 0 and at inf, the same do at every drift;
    of the others it is the upper end that tells those within, and their set only shrinks.
    """
    least, most = (decide(measured, bound, end, cap, resolution) for end in (0.0, math.inf))
    if least.equals(most):
        return least
    return decide(measured, bound, drift(), cap, resolution)


def joint(parts: list[Measured]) -> Measured:
    """The norm of several tensors together: √Σ n², off by at most √Σ e².

    Proof: the triangle inequality for the vector of norms. Each of the k hypotenuses is off by two
    units in the last place at most, and neither overflows nor underflows before its result does.
    """
    norm: FloatArray = reduce(np.hypot, [part.norm for part in parts])
    error: FloatArray = reduce(np.hypot, [part.error for part in parts])
    rounding = len(parts) * 2.0**-51
    return Measured(norm, error * (1.0 + 2.0 * rounding) + norm * (2.0 * rounding) + _TINY)
