"""Exponentials, logarithms and powers: the functions that `OnDomain` applies entry by entry.

What enters: constants of the node. What leaves: frozen `DomainFunction`s. numpy's exp, log and
power are trusted to 8 ulp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.interval import Interval
from lipcert.ops.domain import DomainFunction
from lipcert.ops.scalar import constant, exponential
from lipcert.upper import INFINITE, FloatArray, Upper

_NAMES: Final = {0.5: "Sqrt", -1.0: "Reciprocal"}


@final
@dataclass(frozen=True, slots=True)
class Exp(DomainFunction):
    """e^x."""

    @property
    def name(self) -> str:
        """Exp."""
        return "Exp"

    @property
    def needs(self) -> str:
        """An upper bound."""
        return "entries with an upper bound below 709"

    def is_defined(self, box: Interval) -> bool:
        """Everywhere."""
        del box
        return True

    def value(self, x: FloatArray) -> FloatArray:
        """e^x."""
        result: FloatArray = np.exp(x)
        return result

    def image(self, box: Interval) -> Interval:
        """Monotone."""
        return exponential(box)

    def derivative(self, box: Interval) -> Interval:
        """e^x."""
        return exponential(box)


@final
@dataclass(frozen=True, slots=True)
class Exponential(DomainFunction):
    """base^x for a positive base."""

    base: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.base) and self.base > 0.0):
            raise ValueError(f"a power of a constant needs a positive base, not {self.base}")

    @property
    def name(self) -> str:
        """Pow."""
        return "Pow"

    @property
    def needs(self) -> str:
        """A bound on one side."""
        return "an upper bound of its entries" if self.base > 1.0 else "a lower bound"

    def is_defined(self, box: Interval) -> bool:
        """Everywhere."""
        del box
        return True

    def value(self, x: FloatArray) -> FloatArray:
        """base^x."""
        result: FloatArray = np.power(self.base, x)
        return result

    def image(self, box: Interval) -> Interval:
        """Monotone: rises for a base above 1, falls below."""
        with np.errstate(over="ignore", under="ignore"):
            ends = np.power(self.base, box.lo), np.power(self.base, box.hi)
        rising = Interval(np.minimum(*ends), np.maximum(*ends)).widen(8)
        return rising.clip(0.0, math.inf)

    def derivative(self, box: Interval) -> Interval:
        """ln(base)·base^x."""
        return self.image(box) * constant(math.log(self.base)).widen(8)


@final
@dataclass(frozen=True, slots=True)
class Log(DomainFunction):
    """ln x."""

    @property
    def name(self) -> str:
        """Log."""
        return "Log"

    @property
    def needs(self) -> str:
        """A positive lower bound."""
        return "a positive lower bound of its entries"

    def is_defined(self, box: Interval) -> bool:
        """For x > 0."""
        return bool(np.all(box.lo > 0.0))

    def value(self, x: FloatArray) -> FloatArray:
        """ln x."""
        result: FloatArray = np.log(x)
        return result

    def image(self, box: Interval) -> Interval:
        """Monotone."""
        return box.monotone(np.log)

    def derivative(self, box: Interval) -> Interval:
        """1/x, which falls."""
        return box.reciprocal()


@final
@dataclass(frozen=True, slots=True)
class Power(DomainFunction):
    """x^exponent, for any real exponent; 1 for the exponent 0."""

    exponent: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.exponent) or abs(self.exponent) > 2.0**52:
            raise ValueError(f"an exponent must be a number of moderate size: {self.exponent}")

    @property
    def name(self) -> str:
        """Sqrt, Reciprocal or Pow."""
        return _NAMES.get(self.exponent, "Pow")

    @property
    def needs(self) -> str:
        """Where value and slope are bounded."""
        if self._is_whole and self.exponent >= 0.0:
            return "bounded entries"
        if self._is_whole:
            return "entries bounded away from 0"
        if self.exponent > 1.0:
            return "bounded entries that are at least 0"
        return "a positive lower bound of its entries"

    def is_defined(self, box: Interval) -> bool:
        """Whole exponents: everywhere, without 0 for negative ones. Others: x ≥ 0, or x > 0."""
        if self._is_whole:
            return self.exponent >= 0.0 or bool(np.all((box.lo > 0.0) | (box.hi < 0.0)))
        return bool(np.all(box.lo >= 0.0 if self.exponent > 0.0 else box.lo > 0.0))

    def value(self, x: FloatArray) -> FloatArray:
        """x^exponent."""
        result: FloatArray = np.power(x, self.exponent)
        return result

    def image(self, box: Interval) -> Interval:
        """Of |x|, with the sign of x where the exponent is odd."""
        return _signed_power(box, self.exponent)

    def derivative(self, box: Interval) -> Interval:
        """exponent·x^(exponent − 1); the difference of the exponents is exact or enclosed."""
        if self.exponent == 0.0:
            return constant(0.0).broadcast(box.shape)
        lower = self.exponent - 1.0
        power = _signed_power(box, lower)
        if Fraction(lower) + 1 != Fraction(self.exponent):  # powers are monotone in the exponent
            near = constant(lower).widen(1)
            for end in (float(near.lo), float(near.hi)):
                power = power.hull(_signed_power(box, end))
        return power * constant(self.exponent)

    def chord(self, box: Interval) -> Upper:
        """|x|^(exponent − 1), for exponents of at least 1 that are not too large to be exact."""
        if not 1.0 <= self.exponent <= 2.0**20:
            return INFINITE
        return _power(box.absolute(), self.exponent - 1.0).max_abs()

    @property
    def _is_whole(self) -> bool:
        return self.exponent.is_integer()


def _power(magnitude: Interval, exponent: float) -> Interval:
    """Power of an interval of non-negative numbers: monotone."""
    if exponent == 0.0:
        return constant(1.0).broadcast(magnitude.shape)
    if exponent == 1.0:
        return magnitude
    ends = np.abs(magnitude.lo), np.abs(magnitude.hi)  # no −0, whose reciprocal is −inf
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        low, high = (np.power(end, exponent) for end in (ends if exponent > 0.0 else ends[::-1]))
    return Interval(low, high).widen(8).clip(0.0, math.inf)


def _signed_power(box: Interval, exponent: float) -> Interval:
    """Power of an interval: even, odd, or of its non-negative part where it is not whole."""
    if not exponent.is_integer():
        return _power(box.clip(0.0, math.inf), exponent)
    if exponent % 2.0 == 0.0:
        return _power(box.absolute(), exponent)
    above = _power(box.clip(0.0, math.inf), exponent)
    below = -_power((-box).clip(0.0, math.inf), exponent)
    is_above, is_below = box.lo >= 0.0, box.hi <= 0.0
    return Interval(np.where(is_above, above.lo, below.lo), np.where(is_below, below.hi, above.hi))
