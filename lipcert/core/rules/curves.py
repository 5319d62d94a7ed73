"""Functions of one number, as curves that are monotone between known places.

Input: boxes. Output: boxes of the values, and of all Clarke derivatives: at a kink every
derivative between the two one-sided ones counts, whatever a framework picks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from lipcert.core.enclosures import between
from lipcert.core.interval import Array, Interval, clip, exact, hull

Enclosure: TypeAlias = Callable[[Interval], Interval]


class Image(Protocol):
    """What encloses the values of a function over boxes."""

    def over(self, box: Interval) -> Interval:
        """All values at all points."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A continuous function that is monotone between turns.

    at: holds the values at all points of an interval. turns: intervals that hold one place each.
    limits: the values at −inf and inf; they are used beyond ±reach, between which all turns lie.
    """

    at: Enclosure
    turns: tuple[Interval, ...] = ()
    limits: tuple[float, float] = (-math.inf, math.inf)
    reach: float = math.inf

    def over(self, box: Interval) -> Interval:
        """The image of a box.

        Proof: a continuous function takes its extremes over [a, b] at the ends or at turns inside.
        A turn that the box may or may not hold is counted.
        """
        image = hull(self._end(box.lo), self._end(box.hi))
        low, high = image.lo, image.hi
        for place in self.turns:
            held = (box.lo <= place.hi) & (box.hi >= place.lo)
            value = self.at(place)
            low = np.where(held, np.minimum(low, value.lo), low)
            high = np.where(held, np.maximum(high, value.hi), high)
        return Interval(low, high)

    def _end(self, points: Array) -> Interval:
        """Beyond the reach, a value lies between that at the reach and the limit."""
        value = self.at(exact(np.clip(points, -self.reach, self.reach)))
        low, high = value.lo, value.hi
        for beyond, limit in zip(
            (points < -self.reach, points > self.reach), self.limits, strict=True
        ):
            low = np.where(beyond, np.minimum(low, limit), low)
            high = np.where(beyond, np.maximum(high, limit), high)
        return Interval(low, high)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The derivative on [start, stop] (or a part of it), one-sided at the ends."""

    start: float
    stop: float
    slope: Image


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A locally Lipschitz function f of one number.

    slopes: pieces that cover the line. least: f is defined from there on. bounds: all values lie
    there. shrinks: f(x) lies between 0 and x. ratio: |f(x)| ≤ |ratio(x)|·|x|.
    """

    value: Image
    slopes: tuple[Piece, ...]
    bounds: tuple[float, float] = (-math.inf, math.inf)
    shrinks: bool = False
    least: float = -math.inf
    ratio: Image | None = None

    def image(self, box: Interval) -> Interval:
        """f(x) for all x of the box; the whole line where f is not defined on all of it."""
        with np.errstate(all="ignore"):
            image = clip(self.value.over(self._inside(box)), *self.bounds)
            if self.shrinks:
                image = between(image, box)
        return self._known(box, image)

    def derivative(self, box: Interval) -> Interval:
        """Every Clarke derivative at every x of the box: the hull of the pieces it touches."""
        low, high = np.full(box.shape, np.inf), np.full(box.shape, -np.inf)
        inside = self._inside(box)
        for piece in self.slopes:
            touched = (inside.lo <= piece.stop) & (inside.hi >= piece.start)
            with np.errstate(all="ignore"):
                slope = piece.slope.over(clip(inside, piece.start, piece.stop))
            low = np.where(touched, np.minimum(low, slope.lo), low)
            high = np.where(touched, np.maximum(high, slope.hi), high)
        return self._known(box, Interval(low, high))

    def steepest(self, box: Interval) -> float:
        """≥ |f'| on the box."""
        return _largest(self.derivative(box))

    def chord(self, box: Interval) -> float:
        """≥ |f(x) − f(0)|/|x| on the box.

        Proof: the mean of f' between 0 and x, a part of the hull of the box and 0; and where
        |f(x)| ≤ c|x|, f(0) is 0.
        """
        bound = self.steepest(hull(box, exact(0.0)))
        if self.shrinks:
            bound = min(bound, 1.0)
        if self.ratio is not None:
            with np.errstate(all="ignore"):
                ratio = self._known(box, self.ratio.over(self._inside(box)))
            bound = min(bound, _largest(ratio))
        return bound

    @property
    def at_zero(self) -> float:
        """≥ |f(0)|."""
        return 0.0 if self.shrinks or self.ratio is not None else _largest(self.image(exact(0.0)))

    def _inside(self, box: Interval) -> Interval:
        return clip(box, self.least, math.inf)

    def _known(self, box: Interval, answer: Interval) -> Interval:
        defined = box.lo >= self.least
        return Interval(np.where(defined, answer.lo, -np.inf), np.where(defined, answer.hi, np.inf))


def always(number: float) -> Curve:
    """The curve of a constant function."""
    return Curve(lambda x: exact(np.full(x.shape, number)))


def _largest(box: Interval) -> float:
    return float(np.max(box.magnitude(), initial=0.0))
