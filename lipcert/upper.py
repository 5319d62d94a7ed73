"""Directed rounding of scalars, and certified reductions of float64 arrays.

Input: float64 numbers taken as exact. Output: `Upper` (never below the real number it
stands for) and `Lower` (never above it), both non-negative.

Scalar operations are *correctly* rounded in their direction: the round-to-nearest result is
compared with the exact rational one and moved by one ulp only when it lies on the wrong side.
Array reductions use the classical a-priori bound |fl(Σ) − Σ| ≤ γ_n Σ|·|, γ_n = n·u/(1 − n·u),
valid for every order of summation, with or without fused multiply-add (Higham, Accuracy and
Stability of Numerical Algorithms, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, total_ordering
from typing import Final, final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
_Exact = Callable[[], Fraction]

UNIT_ROUNDOFF: Final = 2.0**-53
_SMALLEST_NORMAL: Final = 2.0**-1022
_SHORT: Final = 1024
_MODERATE: Final = 200


def _checked(value: float) -> float:
    value = float(value)
    if math.isnan(value) or value < 0.0:
        raise ValueError(f"a bound must be a non-negative number, not {value!r}")
    return value


@final
@total_ordering
@dataclass(frozen=True, slots=True)
class Upper:
    """A float64 that is at least the non-negative real number it stands for; inf = no bound.

    Has +, *, sqrt, max (through comparison) and division by a `Lower`; on purpose no − and no
    conversion to float: subtracting or dividing two upper bounds proves nothing.
    """

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _checked(self.value))

    @property
    def is_finite(self) -> bool:
        """Whether this is a bound at all."""
        return math.isfinite(self.value)

    @property
    def number(self) -> float | None:
        """The bound as records have it: None where there is none."""
        return finite(self.value)

    def __add__(self, other: Upper) -> Upper:
        return Upper(_round_up(self.value + other.value, lambda: _exact_sum(self, other)))

    def __mul__(self, other: Upper) -> Upper:
        """Product; 0 · inf is inf, because an absent bound says nothing about its factor."""
        if not (self.is_finite and other.is_finite):
            return INFINITE
        return Upper(_round_up(self.value * other.value, lambda: _exact_product(self, other)))

    def sqrt(self) -> Upper:
        """The square root, rounded up."""
        if not self.is_finite:
            return self
        root = math.sqrt(self.value)
        if Fraction(root) ** 2 < Fraction(self.value):
            root = math.nextafter(root, math.inf)
        return Upper(root)

    def over(self, divisor: Lower) -> Upper:
        """This divided by a lower bound; inf when the divisor may be 0."""
        if not self.is_finite or divisor.value == 0.0:
            return INFINITE
        quotient = self.value / divisor.value
        return Upper(_round_up(quotient, lambda: Fraction(self.value) / Fraction(divisor.value)))

    def __lt__(self, other: Upper) -> bool:
        return self.value < other.value

    @classmethod
    def of_fraction(cls, number: Fraction) -> Upper:
        """The smallest float64 at or above a rational number."""
        return cls(_round_up(float(number), lambda: number))


def finite(bound: float | None) -> float | None:
    """A bound as records have it: None where it is infinite, or NaN, and there is none."""
    return bound if bound is not None and math.isfinite(bound) else None


@final
@dataclass(frozen=True, slots=True)
class Lower:
    """A float64 that is at most the non-negative real number it stands for (for divisors)."""

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _checked(self.value))

    def __add__(self, other: Lower) -> Lower:
        return Lower(_round_down(self.value + other.value, lambda: _exact_sum(self, other)))

    def __mul__(self, other: Lower) -> Lower:
        return Lower(_round_down(self.value * other.value, lambda: _exact_product(self, other)))

    def sqrt(self) -> Lower:
        """The square root, rounded down."""
        root = math.sqrt(self.value)
        if math.isfinite(root) and Fraction(root) ** 2 > Fraction(self.value):
            root = math.nextafter(root, 0.0)
        return Lower(root)

    def over(self, divisor: Upper) -> Lower:
        """This divided by an upper bound, rounded down."""
        if not divisor.is_finite:
            return Lower(0.0)
        if divisor.value == 0.0:
            raise ValueError("cannot divide by an upper bound that is zero")
        quotient = self.value / divisor.value
        return Lower(_round_down(quotient, lambda: Fraction(self.value) / Fraction(divisor.value)))


ZERO: Final = Upper(0.0)
ONE: Final = Upper(1.0)
INFINITE: Final = Upper(math.inf)
_DOWN: Final = Upper(2.0**-600)
_UP: Final = Upper(2.0**600)


def _exact_sum(a: Upper | Lower, b: Upper | Lower) -> Fraction:
    return Fraction(a.value) + Fraction(b.value)


def _exact_product(a: Upper | Lower, b: Upper | Lower) -> Fraction:
    return Fraction(a.value) * Fraction(b.value)


def _round_up(nearest: float, exact: _Exact) -> float:
    if math.isfinite(nearest) and Fraction(nearest) < exact():
        return math.nextafter(nearest, math.inf)
    return nearest


def _round_down(nearest: float, exact: _Exact) -> float:
    if not math.isfinite(nearest):
        return float(np.finfo(np.float64).max)
    if Fraction(nearest) > exact():
        return math.nextafter(nearest, 0.0)
    return nearest


def total(bounds: Iterable[Upper]) -> Upper:
    """The sum of the bounds, each addition rounded up."""
    result = ZERO
    for bound in bounds:
        result = result + bound
    return result


def root_sum_square(bounds: Iterable[Upper]) -> Upper:
    """√Σ b², rounded up; exact for a single bound.

    Where the squares exceed float64, the bounds are scaled by a power of two and back.
    """
    items = list(bounds)
    if len(items) == 1:
        return items[0]
    squares = total(bound * bound for bound in items)
    if squares.is_finite or not all(bound.is_finite for bound in items):
        return squares.sqrt()
    scaled = total(bound * _DOWN * (bound * _DOWN) for bound in items)
    return scaled.sqrt() * _UP


@lru_cache(maxsize=1024)
def gamma(terms: int) -> Upper:
    """γ_n = n·u / (1 − n·u), the relative error of an n-term sum or inner product."""
    product = terms * Fraction(1, 2**53)
    if product >= Fraction(1, 2):
        raise ValueError(f"a sum of {terms} terms has no useful rounding bound")
    return Upper.of_fraction(product / (1 - product))


def norm(array: FloatArray) -> Upper:
    """Upper bound of the Euclidean (Frobenius) norm of an array of exact float64 numbers.

    Proof: the sum of squares of a short array is computed exactly. A longer one is scaled by a
    power of two so that its largest magnitude is moderate, which loses nothing but entries whose
    squares underflow; each of those contributes at most the smallest normal number. Then
    Σv² ≤ fl(Σv²)/(1 − γ_n), and 1/(1 − γ_n) ≤ 1 + 2γ_n.
    """
    flat, scale = _scaled(array)
    if flat.size == 0:
        return ZERO
    if flat.size <= _SHORT:
        squares = _exact_square_sum(np.ravel(array)) / Fraction(scale.value) ** 2
        return Upper.of_fraction(squares).sqrt() * scale
    computed = Upper(float(np.dot(flat, flat)))
    slack = ONE + Upper(2.0) * gamma(flat.size + 2)
    lost = Upper(flat.size * _SMALLEST_NORMAL * 4.0)
    return (computed * slack + lost).sqrt() * scale


def _exact_square_sum(array: FloatArray) -> Fraction:
    """Σ v² in integers: v = m·2^e with integer mantissas m, brought to the smallest exponent."""
    mantissas, exponents = np.frexp(array[array != 0.0])
    integers = np.ldexp(mantissas, 53).astype(np.int64).tolist()
    lowest = int(exponents.min(initial=0))
    shifts = (exponents - lowest).tolist()
    whole = sum((m << shift) ** 2 for m, shift in zip(integers, shifts, strict=True))
    return Fraction(whole) * Fraction(2) ** (2 * (lowest - 53))


def norm_lower(array: FloatArray) -> Lower:
    """Lower bound of the Euclidean norm: the companion of `norm`."""
    flat, scale = _scaled(array)
    if flat.size == 0:
        return Lower(0.0)
    computed = Lower(float(np.dot(flat, flat)))
    slack = Lower(1.0).over(ONE + Upper(2.0) * gamma(flat.size + 2))
    return (computed * slack).sqrt() * Lower(scale.value)


def _scaled(array: FloatArray) -> tuple[FloatArray, Upper]:
    """The entries divided by a power of two near the largest, unless that is moderate; the power.

    Empty where every entry is 0.
    """
    flat = np.asarray(array, dtype=np.float64).ravel()
    largest = float(max(np.max(flat, initial=0.0), -np.min(flat, initial=0.0)))
    if not math.isfinite(largest):
        raise ValueError("the norm of an array with NaN or infinite entries is not defined")
    if largest == 0.0:
        return np.empty(0), ONE
    exponent = max(min(math.frexp(largest)[1] - 1, 1000), -1000)
    if abs(exponent) <= _MODERATE:
        return flat, ONE
    return np.ldexp(flat, -exponent), Upper(math.ldexp(1.0, exponent))
