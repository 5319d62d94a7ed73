"""ScalarFunction: what a rule must know of a function of one number, applied entry by entry.

What enters: intervals of arguments. What leaves: rigorous intervals of values and of (Clarke)
derivatives, and three global constants. Invariant: everything is rounded outward; elementary
functions of numpy and scipy are trusted to the number of ulps stated where they are called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.interval import Interval
from lipcert.upper import FloatArray


class ScalarFunction(ABC):
    """A locally Lipschitz function of one real number; subclasses are frozen dataclasses."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Name of the function, in the spelling of ONNX where ONNX has one."""
        return type(self).__name__

    @abstractmethod
    def value(self, x: FloatArray) -> FloatArray:
        """f entry by entry, in ordinary float64."""


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
