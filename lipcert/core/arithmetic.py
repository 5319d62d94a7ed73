"""Directed rounding of scalars, by exact integers.

What enters: finite float64 numbers, taken as exact, or rational numbers. What leaves: the
nearest float64 at or above (`_up`) or at or below (`_down`) the exact result.

Proof: an operand is a rational number, so a sum, product or quotient is one too, and it is formed
without rounding as a `Fraction`. The result v is then written as m·2^e with the integer
m = ⌈v/2^e⌉ (or ⌊v/2^e⌋) of at most 53 bits and e ≥ −1074, a float64 by definition. For a square
root, ⌈√x⌉ = ⌈√⌈x⌉⌉ and ⌊√x⌋ = ⌊√⌊x⌋⌋ for every real x ≥ 0 (an integer k has k² ≥ x exactly where
k² ≥ ⌈x⌉), so integer square roots suffice. The floating-point unit is asked to round nothing.

inf stands for "no upper bound": it is a true upper bound of everything, so an upward operation on
it gives inf, and an upward result beyond float64 is inf. Downward it is refused.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Final, TypeAlias

Number: TypeAlias = float | Fraction

_PRECISION: Final = 1 << 53
_LOWEST_EXPONENT: Final = -1074
_LARGEST: Final = sys.float_info.max
_Scaled = Callable[[int], int]


def add_up(a: Number, b: Number) -> float:
    """Smallest float64 ≥ a + b."""
    return round_up(_exact(a) + _exact(b)) if _finite(a, b) else math.inf


def add_down(a: Number, b: Number) -> float:
    """Largest float64 ≤ a + b."""
    return round_down(_exact(a) + _exact(b))


def multiply_up(a: Number, b: Number) -> float:
    """Smallest float64 ≥ a·b; inf where a factor has no bound, even if the other is 0."""
    return round_up(_exact(a) * _exact(b)) if _finite(a, b) else math.inf


def multiply_down(a: Number, b: Number) -> float:
    """Largest float64 ≤ a·b."""
    return round_down(_exact(a) * _exact(b))


def divide_up(a: Number, b: Number) -> float:
    """Smallest float64 ≥ a/b for b > 0."""
    return round_up(_exact(a) / _divisor(b)) if _finite(a) else math.inf


def divide_down(a: Number, b: Number) -> float:
    """Largest float64 ≤ a/b for b > 0."""
    return round_down(_exact(a) / _divisor(b))


def sqrt_up(a: Number) -> float:
    """Smallest float64 ≥ √a for a ≥ 0."""
    if not _finite(a):
        return math.inf
    square = _not_negative(a)

    def scaled(exponent: int) -> int:
        return _root_up(_ceiling(square, 2 * exponent))

    return _rounded(scaled, _magnitude(square) // 2, math.inf)


def sqrt_down(a: Number) -> float:
    """Largest float64 ≤ √a for a ≥ 0."""
    square = _not_negative(a)

    def scaled(exponent: int) -> int:
        return math.isqrt(_floor(square, 2 * exponent))

    return _rounded(scaled, _magnitude(square) // 2, _LARGEST)


def round_up(number: Fraction) -> float:
    """Smallest float64 ≥ a rational number; inf beyond the largest."""
    if number < 0:
        return -round_down(-number)
    return _rounded(lambda e: _ceiling(number, e), _magnitude(number), math.inf)


def round_down(number: Fraction) -> float:
    """Largest float64 ≤ a rational number; −inf below the lowest."""
    if number < 0:
        return -round_up(-number)
    return _rounded(lambda e: _floor(number, e), _magnitude(number), _LARGEST)


def _rounded(scaled: _Scaled, magnitude: int, beyond: float) -> float:
    """m·2^e for the smallest e at which m = scaled(e) is at most 2^53; `beyond` above float64."""
    exponent = max(magnitude - 54, _LOWEST_EXPONENT)
    while scaled(exponent) > _PRECISION:
        exponent += 1
    try:
        return math.ldexp(scaled(exponent), exponent)
    except OverflowError:
        return beyond


def _magnitude(number: Fraction) -> int:
    """An integer k with 2^(k−1) < number < 2^(k+1)."""
    return number.numerator.bit_length() - number.denominator.bit_length()


def _ceiling(number: Fraction, exponent: int) -> int:
    """⌈number / 2^exponent⌉; nothing is reduced on the way, which would take most of the time."""
    if exponent < 0:
        return -((-number.numerator << -exponent) // number.denominator)
    return -(-number.numerator // (number.denominator << exponent))


def _floor(number: Fraction, exponent: int) -> int:
    """⌊number / 2^exponent⌋."""
    if exponent < 0:
        return (number.numerator << -exponent) // number.denominator
    return number.numerator // (number.denominator << exponent)


def _root_up(square: int) -> int:
    """⌈√square⌉."""
    return math.isqrt(square - 1) + 1 if square > 0 else 0


def _finite(*numbers: Number) -> bool:
    """False where a number is +inf; anything else that is not a real number is refused."""
    if any(number != number or number == -math.inf for number in numbers):  # noqa: PLR0124
        raise ValueError("NaN and -inf are not bounds")
    return all(number != math.inf for number in numbers)


def _exact(number: Number) -> Fraction:
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"{number!r} is not a real number")
    return Fraction(number)


def _divisor(number: Number) -> Fraction:
    if number <= 0:
        raise ValueError("a divisor must be positive")
    return _exact(number)


def _not_negative(number: Number) -> Fraction:
    if number < 0:
        raise ValueError("a negative number has no square root")
    return _exact(number)
