"""Rounding: how far floating-point operations may be off in one precision.

What enters: a `Precision`. What leaves: relative and absolute errors as `Upper`s.

Assumptions about the arithmetic, on which every drift rests:
- a stored result is off by at most `storage` of itself, plus `tiny` near zero;
- a factor of a product that is read in a short format is off by at most `operand` of itself;
- sums of products are accumulated in any order with `sums` per addition; algorithms that do not
  multiply term by term (Winograd, FFT) err like `FAST_ALGORITHM` more additions;
- one operation of the framework (a softmax, a GELU) works in `sums` precision inside, and rounds
  its results once; elementary functions (exp, log, tanh, erf, pow, …) are off by at most 4 units
  of their result, and by what the rounding of their argument moves it;
- nothing overflows: infinity and NaN are found by the audit itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, final

from lipcert.audit.precision import Precision
from lipcert.upper import INFINITE, Upper

FAST_ALGORITHM: Final = 64
"""additions by which Winograd or FFT convolutions may be worse than sums of products"""
_LARGEST_EXPONENT: Final = 1100
"""|ln x| of a positive number of any format is less"""


@final
@dataclass(frozen=True, slots=True)
class Rounding:
    """One precision. storage, operand, sums: relative errors of one rounding; tiny: absolute."""

    storage: float
    operand: float
    sums: float
    tiny: Upper

    @classmethod
    def of(cls, precision: Precision) -> Rounding:
        """TF32 keeps float32 in storage, and reads factors of products in 10 bits."""
        storage = precision.unit
        if precision is Precision.TF32:
            storage = precision.accumulator_unit
        return cls(storage, precision.unit, precision.accumulator_unit, Upper(precision.smallest))

    def inside(self) -> Rounding:
        """What happens inside one operation, before its result is stored."""
        return Rounding(self.sums, self.sums, self.sums, self.tiny)

    def stored(self, count: int) -> Upper:
        """Relative error of `count` roundings of stored results, one after the other."""
        return _gamma(count, self.storage)

    def summed(self, terms: int) -> Upper:
        """Error of a stored sum, over the sum of the magnitudes of its terms."""
        return joined(_gamma(terms, self.sums), self.stored(1))

    def product(self, terms: int) -> Upper:
        """Error of a stored sum of products, over the sum of the magnitudes of its terms."""
        return joined(_gamma(2, self.operand), self.summed(terms))

    def gathered(self, terms: int) -> Upper:
        """As `summed`, for sums that are accumulated in storage; a single term is exact."""
        return _gamma(max(terms - 1, 0), self.storage)

    def floor(self, entries: int, count: int) -> Upper:
        """Norm of the absolute errors of `count` operations at each of so many entries."""
        return self.tiny * Upper(float(count)) * root(entries)

    def powers(self, exponent: float) -> Upper:
        """Relative error of x ↦ x^exponent, whose exponent may be rounded, too."""
        if exponent * 8.0 == math.trunc(exponent * 8.0) and abs(exponent) <= 16.0:
            return self.stored(8)
        return joined(self.stored(8), self.stored(math.ceil(_LARGEST_EXPONENT * abs(exponent))))


@lru_cache(maxsize=4096)
def _gamma(count: int, unit: float) -> Upper:
    """γ = count·u/(1 − count·u) bounds |Π (1 + δ_i)^±1 − 1| for |δ_i| ≤ u; none from 1 on."""
    product = count * Fraction(unit)
    return Upper.of_fraction(product / (1 - product)) if product < 1 else INFINITE


def joined(first: Upper, second: Upper) -> Upper:
    """(1 + a)(1 + b) − 1."""
    return first + second + first * second


@lru_cache(maxsize=4096)
def root(count: int) -> Upper:
    """√count, rounded up."""
    return Upper(float(count)).sqrt()
