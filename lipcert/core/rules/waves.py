"""sin and its quarter-turned copies: cos x = sin(x + π/2), −sin x = sin(x + π)."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.core.enclosures import HALF_PI
from lipcert.core.interval import Array, Interval, clip, exact
from lipcert.core.rules.curves import Function, Piece

_FAR: Final = 2.0**20
_TERMS: Final = 8
_ONE: Final = exact(1.0)


@dataclass(frozen=True, slots=True)
class Wave:
    """sin(x + quarters·π/2)."""

    quarters: int

    def over(self, box: Interval) -> Interval:
        """The image of a box: ±1 where it may hold a crest or a trough, or reaches beyond 2^20."""
        points = clip(box, -_FAR, _FAR)
        first, second = self._at(points.lo), self._at(points.hi)
        far = (box.lo < -_FAR) | (box.hi > _FAR)
        low, high = np.minimum(first.lo, second.lo), np.maximum(first.hi, second.hi)
        low = np.where(far | self._meets(points, 3.0), -1.0, low)
        high = np.where(far | self._meets(points, 1.0), 1.0, high)
        return clip(Interval(low, high), -1.0, 1.0)

    def _meets(self, box: Interval, place: float) -> npt.NDArray[np.bool_]:
        """Whether x + quarters·π/2 may be (place + 4n)·π/2 for an integer n and an x of the box."""
        turns = box * HALF_PI.reciprocal() + exact(self.quarters - place)
        met: npt.NDArray[np.bool_] = np.floor(turns.hi / 4.0) >= np.ceil(turns.lo / 4.0)
        return met

    def _at(self, points: Array) -> Interval:
        """Points are taken apart as k·π/2 + r, with |r| < 1 checked; k selects ±sin r or ±cos r."""
        k = np.rint(points * 0.6366197723675814)
        r = exact(points) - exact(k) * HALF_PI
        if not (r.magnitude() < 1.0).all():
            raise ArithmeticError("the argument of sin was not reduced")
        square = clip(r * r, 0.0, 1.0)
        sine, cosine = r * _series(square, 1), _series(square, 0)
        which = (k.astype(np.int64) + self.quarters) % 4
        choices = [sine, cosine, -sine, -cosine]
        return Interval(
            np.choose(which, [choice.lo for choice in choices]),
            np.choose(which, [choice.hi for choice in choices]),
        )


def _series(square: Interval, odd: int) -> Interval:
    """(sin r)/r for odd = 1, cos r for odd = 0: 1 − z/(a(a + 1))·(1 − …), z = r² ≤ 1.

    Proof: the terms alternate and fall, so that what follows a term is s times it, 0 ≤ s ≤ 1.
    """
    value = Interval(np.zeros(()), np.ones(()))
    for n in range(2 * _TERMS, 0, -2):
        factor = exact(float((n - 1 + odd) * (n + odd))).reciprocal()
        value = _ONE - square * factor * value
    return value


def sin() -> Function:
    """The sine, of slope cos x."""
    return _turned(0)


def cos() -> Function:
    """The cosine, of slope −sin x."""
    return _turned(1)


def _turned(quarters: int) -> Function:
    """sin(x + quarters·π/2), whose slope is a quarter turn ahead."""
    slope = Piece(-math.inf, math.inf, Wave(quarters + 1))
    return Function(Wave(quarters), (slope,), bounds=(-1.0, 1.0))
