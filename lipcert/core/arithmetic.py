"""Directed rounding of scalars, by exact integers.

Input: finite float64 numbers, taken as exact, or rational numbers. Output: the
nearest float64 at or above (`_up`) or at or below (`_down`) the exact result.

Proof: an operand is a quotient of integers, so a sum, product or quotient is one too, n/d with
d > 0, formed without rounding. Some float64 p/q near it is taken, and steps up by one float64
until p·d ≥ n·q, a comparison of integers: the result is no smaller than n/d wherever it began. It
is the smallest because division of integers rounds correctly, so that it begins at one of the two
neighbours of n/d. For a square root, ⌈√x⌉ = ⌈√⌈x⌉⌉ and ⌊√x⌋ = ⌊√⌊x⌋⌋ for every real x ≥ 0 (an
integer k has k² ≥ x exactly where k² ≥ ⌈x⌉), so integer square roots suffice, in units that
divide every float64 of that magnitude. The floating-point unit is asked to round nothing.

inf stands for "no upper bound": it is a true upper bound of everything, so an upward operation on
it gives inf, and an upward result beyond float64 is inf. Downward it is refused.
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Final, TypeAlias

Number: TypeAlias = float | Fraction

_INF: Final = math.inf
_LARGEST: Final = sys.float_info.max
_ROOT_BITS: Final = 64
"""of a root in integers, more than a float64 has"""


def add_up(a: Number, b: Number) -> float:
    """Smallest float64 ≥ a + b."""
    return _up(*_sum(a, b)) if _finite(a, b) else _INF


def add_down(a: Number, b: Number) -> float:
    """Largest float64 ≤ a + b."""
    return _down(*_sum(a, b))


def multiply_up(a: Number, b: Number) -> float:
    """Smallest float64 ≥ a·b; inf where a factor has no bound, even if the other is 0."""
    return _up(*_product(a, b)) if _finite(a, b) else _INF


def multiply_down(a: Number, b: Number) -> float:
    """Largest float64 ≤ a·b."""
    return _down(*_product(a, b))


def divide_up(a: Number, b: Number) -> float:
    """Smallest float64 ≥ a/b for b > 0."""
    return _up(*_quotient(a, b)) if _finite(a) else _INF


def divide_down(a: Number, b: Number) -> float:
    """Largest float64 ≤ a/b for b > 0."""
    return _down(*_quotient(a, b))


def sqrt_up(a: Number) -> float:
    """Smallest float64 ≥ √a for a ≥ 0."""
    if not _finite(a):
        return _INF
    n, d, bits = _square(a)
    return _up(_root_up(-(-n // d)), 1 << bits)


def sqrt_down(a: Number) -> float:
    """Largest float64 ≤ √a for a ≥ 0."""
    n, d, bits = _square(a)
    return _down(math.isqrt(n // d), 1 << bits)


def round_up(number: Fraction) -> float:
    """Smallest float64 ≥ a rational number; inf beyond the largest."""
    return _up(*number.as_integer_ratio())


def round_down(number: Fraction) -> float:
    """Largest float64 ≤ a rational number; −inf below the lowest."""
    return _down(*number.as_integer_ratio())


def _up(n: int, d: int) -> float:
    """Smallest float64 ≥ n/d for d > 0."""
    try:
        found = n / d
    except OverflowError:
        return _INF if n > 0 else -_LARGEST
    while found < _INF:
        p, q = found.as_integer_ratio()
        if p * d >= n * q:
            break
        found = math.nextafter(found, _INF)
    return found


def _down(n: int, d: int) -> float:
    """Largest float64 ≤ n/d for d > 0."""
    return 0.0 - _up(-n, d)


def _sum(a: Number, b: Number) -> tuple[int, int]:
    (n, d), (m, e) = _ratio(a), _ratio(b)
    return n * e + m * d, d * e


def _product(a: Number, b: Number) -> tuple[int, int]:
    (n, d), (m, e) = _ratio(a), _ratio(b)
    return n * m, d * e


def _quotient(a: Number, b: Number) -> tuple[int, int]:
    (n, d), (m, e) = _ratio(a), _ratio(b)
    if m <= 0:
        raise ValueError("a divisor must be positive")
    return n * e, d * m


def _square(a: Number) -> tuple[int, int, int]:
    """n, d, k with n/d = a·4^k, so that the root of n/d has bits enough; for a ≥ 0."""
    n, d = _ratio(a)
    if n < 0:
        raise ValueError("a negative number has no square root")
    bits = max(_ROOT_BITS - (n.bit_length() - d.bit_length()) // 2, 0)
    return n << 2 * bits, d, bits


def _root_up(square: int) -> int:
    """⌈√square⌉."""
    return math.isqrt(square - 1) + 1 if square > 0 else 0


def _finite(a: Number, b: Number = 0.0) -> bool:
    """False where a number is +inf; anything else that is not a real number is refused."""
    if -_INF < a < _INF and -_INF < b < _INF:
        return True
    if not (a > -_INF and b > -_INF):
        raise ValueError("NaN and -inf are not bounds")
    return False


def _ratio(number: Number) -> tuple[int, int]:
    """Numerator and denominator; the latter is positive."""
    if not -_INF < number < _INF:
        raise ValueError(f"{number!r} is not a real number")
    return number.as_integer_ratio()
