"""Exponentials, logarithms and powers: the functions that `OnDomain` applies entry by entry.

What enters: constants of the node. What leaves: frozen `DomainFunction`s. numpy's exp, log and
power are trusted to 8 ulp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np

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

    def value(self, x: FloatArray) -> FloatArray:
        """x^exponent."""
        result: FloatArray = np.power(x, self.exponent)
        return result
