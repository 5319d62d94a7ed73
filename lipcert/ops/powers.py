"""Exponentials, logarithms and powers: the functions that `OnDomain` applies entry by entry.

What enters: constants of the node. What leaves: frozen `DomainFunction`s. numpy's exp, log and
power are trusted to 8 ulp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.interval import Interval
from lipcert.ops.domain import DomainFunction
from lipcert.upper import FloatArray

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

    @property
    def _is_whole(self) -> bool:
        return self.exponent.is_integer()
