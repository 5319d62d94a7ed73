"""ScalarFunction: what a rule must know of a function of one number, applied entry by entry.

What enters: intervals of arguments. What leaves: rigorous intervals of values and of (Clarke)
derivatives, and three global constants. Invariant: everything is rounded outward; elementary
functions of numpy and scipy are trusted to the number of ulps stated where they are called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.interval import Interval
from lipcert.upper import ZERO, FloatArray, Upper


class ScalarFunction(ABC):
    """A locally Lipschitz function of one real number; subclasses are frozen dataclasses."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Name of the function, in the spelling of ONNX where ONNX has one."""
        return type(self).__name__

    @property
    @abstractmethod
    def lipschitz(self) -> Upper:
        """B ≥ sup |f'| over the real line."""

    @property
    def origin(self) -> Upper:
        """B ≥ |f(0)|."""
        return ZERO

    @property
    def chord(self) -> Upper:
        """B ≥ sup |f(x) − f(0)| / |x|; at most the Lipschitz constant, often less."""
        return self.lipschitz

    @abstractmethod
    def value(self, x: FloatArray) -> FloatArray:
        """f entry by entry, in ordinary float64."""

    @abstractmethod
    def image(self, box: Interval) -> Interval:
        """Holds f(x) for every x of the box, entry by entry."""

    @abstractmethod
    def derivative(self, box: Interval) -> Interval:
        """Holds every Clarke derivative of f at every point of the box, entry by entry."""


@final
@dataclass(frozen=True, slots=True)
class Turn:
    """A point where a function changes between rising and falling, and its value there."""

    place: Interval
    value: Interval

    @classmethod
    def of(cls, place: str, value: str) -> Turn:
        """From the leading digits (18 or more) of the place and the value."""
        return cls(decimal(place), decimal(value))


def decimal(digits: str) -> Interval:
    """Floats around a real number whose 18 or more leading digits are given.

    Proof: reading errs by half an ulp, the digits left out weigh less than another half.
    """
    return constant(float(digits)).widen(1)


def constant(number: float) -> Interval:
    """One exact number, which broadcasts against any array."""
    return Interval.exact(np.asarray(number, dtype=np.float64))


def rational(number: Fraction) -> Interval:
    """Floats around a rational number, which is exact where it is a float."""
    near = constant(float(number))
    return near if Fraction(float(number)) == number else near.widen(1)


def between_turns(
    box: Interval, at: Callable[[Interval], Interval], turns: Sequence[Turn]
) -> Interval:
    """Image of a box under a continuous function that is monotone between its turns.

    `at` encloses the function at exact points. Proof: on a closed interval such a function takes
    its extremes at the ends or at turns inside; a turn near the box is counted as inside.
    """
    image = at(Interval.exact(box.lo)).hull(at(Interval.exact(box.hi)))
    lo, hi = image.lo, image.hi
    for turn in turns:
        inside = (box.lo <= turn.place.hi) & (box.hi >= turn.place.lo)
        lo = np.where(inside, np.minimum(lo, turn.value.lo), lo)
        hi = np.where(inside, np.maximum(hi, turn.value.hi), hi)
    return Interval(lo, hi)


def joined_at_zero(box: Interval, negative: Interval, positive: Interval) -> Interval:
    """One answer for arguments ≤ 0, one for arguments ≥ 0; both where the box touches 0."""
    both = negative.hull(positive)
    above, below = box.lo > 0.0, box.hi < 0.0
    return Interval(
        np.where(above, positive.lo, np.where(below, negative.lo, both.lo)),
        np.where(above, positive.hi, np.where(below, negative.hi, both.hi)),
    )


def expected_sign(box: Interval, image: Interval) -> Interval:
    """The image under a function with x·f(x) ≥ 0: rounding must not blur a known sign."""
    return Interval(
        np.where(box.lo >= 0.0, np.maximum(image.lo, 0.0), image.lo),
        np.where(box.hi <= 0.0, np.minimum(image.hi, 0.0), image.hi),
    )


def exponential(box: Interval) -> Interval:
    """e^x; numpy's exp errs by less than 8 ulp, and e^710 is beyond the largest float."""
    with np.errstate(over="ignore", under="ignore"):
        image = box.monotone(np.exp)
    largest = float(np.finfo(np.float64).max)
    return Interval(np.where(box.lo >= 710.0, largest, np.maximum(image.lo, 0.0)), image.hi)


def logistic(box: Interval) -> Interval:
    """1 / (1 + e^−x)."""
    return (constant(1.0) + exponential(-box)).reciprocal().clip(0.0, 1.0)


def sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + e^−x) in ordinary float64."""
    with np.errstate(over="ignore", under="ignore"):
        result: FloatArray = 1.0 / (1.0 + np.exp(-x))
    return result


def squared_sech(box: Interval) -> Interval:
    """1 − tanh² x = 4·σ(2x)·σ(−2x), without cancellation; meant for exact points."""
    double = box * constant(2.0)
    return logistic(double) * logistic(-double) * constant(4.0)
