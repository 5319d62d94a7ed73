"""Directed rounding of scalars, by exact integers.

Input: finite float64 numbers, taken as exact, or rational numbers. Output: the nearest float64 at
or above (`_up`) or at or below (`_down`) the exact result.

Proof: an operand is a quotient of integers, so a sum, product or quotient is one too, n/d with
d > 0, computed without rounding. Start at a float64 p/q near it, and step up by one float64 until
p·d ≥ n·q, a comparison of integers: the result is no smaller than n/d, wherever the start was. It
is the smallest because division of integers rounds correctly, so that the start is one of the two
neighbours of n/d. For a square root, ⌈√x⌉ = ⌈√⌈x⌉⌉ and ⌊√x⌋ = ⌊√⌊x⌋⌋ for every real x ≥ 0 (an
integer k has k² ≥ x exactly where k² ≥ ⌈x⌉), so integer square roots suffice, in units that
divide every float64 of that magnitude. No rounding of the floating-point unit is relied on.

inf means "no upper bound": it is a valid upper bound of everything, so an upward operation on it
returns inf, and so does an upward result beyond float64. Downward operations refuse it.
"""

import math
from fractions import Fraction
from typing import Final, TypeAlias

Number: TypeAlias = float | Fraction

_INF: Final = math.inf


def add_up(a: Number, b: Number) -> float:
    """Smallest float64 ≥ a + b."""
    return round_up(*_sum(a, b)) if _finite(a, b) else _INF


def add_down(a: Number, b: Number) -> float:
    """Largest float64 ≤ a + b."""
    return round_down(*_sum(a, b))


def multiply_up(a: Number, b: Number) -> float:
    """Smallest float64 ≥ a·b; inf if a factor has no bound, even if the other is 0."""
    return round_up(*_product(a, b)) if _finite(a, b) else _INF


def multiply_down(a: Number, b: Number) -> float:
    """Largest float64 ≤ a·b."""
    return round_down(*_product(a, b))


def divide_up(a: Number, b: Number) -> float:
    """Smallest float64 ≥ a/b for b > 0."""
    return round_up(*_quotient(a, b)) if _finite(a) else _INF


def divide_down(a: Number, b: Number) -> float:
    """Largest float64 ≤ a/b for b > 0."""
    return round_down(*_quotient(a, b))


def sqrt_up(a: Number) -> float:
    """Smallest float64 ≥ √a for a ≥ 0."""
    if not _finite(a):
        return _INF
    n, d, unit = _square(a)
    least = -(-n // d)
    return round_up(math.isqrt(least - 1) + 1 if least else 0, unit)


def sqrt_down(a: Number) -> float:
    """Largest float64 ≤ √a for a ≥ 0."""
    n, d, unit = _square(a)
    return round_down(math.isqrt(n // d), unit)


def round_up(number: Fraction | int, divisor: int = 1) -> float:
    """Smallest float64 ≥ number/divisor, for divisor > 0; inf beyond the largest float64."""
    n, d = number.numerator, number.denominator * divisor
    try:
        found = n / d
    except OverflowError:
        return _INF if n > 0 else math.nextafter(-_INF, 0.0)
    while found < _INF:
        p, q = found.as_integer_ratio()
        if p * d >= n * q:
            break
        found = math.nextafter(found, _INF)
    return found


def round_down(number: Fraction | int, divisor: int = 1) -> float:
    """Largest float64 ≤ number/divisor, for divisor > 0; −inf below the lowest float64."""
    return 0.0 - round_up(-number, divisor)


def _sum(a: Number, b: Number) -> tuple[int, int]:
    (n, d), (m, e) = _exact(a), _exact(b)
    return n * e + m * d, d * e


def _product(a: Number, b: Number) -> tuple[int, int]:
    (n, d), (m, e) = _exact(a), _exact(b)
    return n * m, d * e


def _quotient(a: Number, b: Number) -> tuple[int, int]:
    (n, d), (m, e) = _exact(a), _exact(b)
    if m <= 0:
        raise ValueError("a divisor must be positive")
    return n * e, d * m


def _square(a: Number) -> tuple[int, int, int]:
    """Return a·4^k as a quotient, and 2^k; the root of a·4^k has 64 bits, more than a float64."""
    n, d = _exact(a)
    bits = max(64 - (n.bit_length() - d.bit_length()) // 2, 0)
    return n << 2 * bits, d, 1 << bits


def _finite(a: Number, b: Number = 0.0) -> bool:
    """Return False if a number is +inf; refuse NaN and −inf."""
    if -_INF < a < _INF and -_INF < b < _INF:
        return True
    if not (a > -_INF and b > -_INF):
        raise ValueError("NaN and -inf are not bounds")
    return False


def _exact(number: Number) -> tuple[int, int]:
    if not -_INF < number < _INF:
        raise ValueError(f"{number!r} is not a real number")
    return number.as_integer_ratio()
