"""exp and log of rational numbers, enclosed by exact integers.

Input: a rational number, and how many bits are wanted. Output: two rational numbers with the exact
result between them. No floating-point number is involved.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Final, TypeAlias

Quotient: TypeAlias = tuple[int, int]
"""an integer over one above 0; they may have common factors"""
_LARGEST: Final = 1 << 17


def exp_bounds(x: Fraction, bits: int = 80) -> tuple[Fraction, Fraction]:
    """Returns lo ≤ e^x ≤ hi with hi/lo ≤ 1 + 2^-bits; ValueError for |x| > 2^17."""
    low, high = exp_quotients(x.numerator, x.denominator, bits)
    return Fraction(*low), Fraction(*high)


def exp_quotients(numerator: int, denominator: int, bits: int) -> tuple[Quotient, Quotient]:
    """The bounds of `exp_bounds`, for x = numerator/denominator.

    Proof: e^−x = 1/e^x, so let x ≥ 0, and r = x/2^k ≤ 2^-6. In units of 2^-p, each term of
    Σ r^n/n! is formed from the one before, all rounded downwards or all upwards, until one is 0
    downwards, or at most 1 upwards. The terms behind are at most 2^-6 of their predecessors, so
    that twice the first unused one covers them. Squaring k times, rounded alike, gives e^x.
    Widths: fewer than p/6 + 2 terms err by less than 2 units each, a squaring doubles the relative
    error, and p = bits + k + 16 + log2(bits) leaves room for all.
    """
    below, one = _directed(abs(numerator), denominator, bits, 1)
    above, _ = _directed(abs(numerator), denominator, bits, -1)
    if numerator < 0:
        return (one, above), (one, below)
    return (below, one), (above, one)


def exp_near(numerator: int, denominator: int, bits: int) -> Quotient:
    """That one of the bounds of `exp_quotients` which comes of rounding downwards alone."""
    below, one = _directed(abs(numerator), denominator, bits, 1)
    return (one, below) if numerator < 0 else (below, one)


def log_bounds(x: Fraction, bits: int = 80) -> tuple[Fraction, Fraction]:
    """Returns lo ≤ log x ≤ hi with hi − lo ≤ 2^-bits·(1 + |log x|), for x > 0.

    Proof: x = m·2^e with ½ ≤ m < 2, and log m = 2·artanh((m − 1)/(m + 1)); log 2 = 2·artanh(1/3).
    Both arguments lie in [−1/3, 1/3].
    """
    if x <= 0:
        raise ValueError("the argument of log is not positive")
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    scaled = x / (1 << exponent) if exponent >= 0 else x * (1 << -exponent)
    unit = bits + 16 + bits.bit_length()
    low, high = _artanh((scaled - 1) / (scaled + 1), unit)
    two = _log_two(unit)
    below, above = sorted((exponent * two[0], exponent * two[1]))
    return Fraction(2 * (low + below), 1 << unit), Fraction(2 * (high + above), 1 << unit)


def _directed(size: int, denominator: int, bits: int, side: int) -> tuple[int, int]:
    """e^(size/denominator) of integers that are rounded downwards (1) or upwards (−1), and 2^p."""
    if size > _LARGEST * denominator:
        raise ValueError("the argument of exp is too large")
    halvings = max(0, (size << 6).bit_length() - denominator.bit_length() + 1)
    unit = bits + halvings + 16 + bits.bit_length()
    r = side * ((side * size << unit) // (denominator << halvings))
    total, term, n = 0, 1 << unit, 0
    while term > (side < 0):
        total, n = total + term, n + 1
        term = side * ((side * term * r >> unit) // n)
    total += 2 * term
    for _ in range(halvings):
        total = side * (side * total * total >> unit)
    return total, 1 << unit


@cache
def _log_two(unit: int) -> tuple[int, int]:
    """Half of log 2."""
    return _artanh(Fraction(1, 3), unit)


def _artanh(z: Fraction, unit: int) -> tuple[int, int]:
    """artanh z = Σ z^(2n+1)/(2n+1) in units of 2^-unit, for |z| ≤ 1/3.

    The rest behind a term is at most 1/8 of it, since z² ≤ 1/9.
    """
    if z < 0:
        low, high = _artanh(-z, unit)
        return -high, -low
    below, above = _rounded(z.numerator, z.denominator, unit)
    square_low, square_high = _rounded(z.numerator**2, z.denominator**2, unit)
    low = high = n = 0
    while above > 1:
        low, high, n = low + below // (2 * n + 1), high - (-above // (2 * n + 1)), n + 1
        below, above = below * square_low >> unit, _shifted_up(above * square_high, unit)
    return low, high + 2 * above


def _rounded(numerator: int, denominator: int, unit: int) -> tuple[int, int]:
    """The integers around numerator/denominator·2^unit."""
    scaled = numerator << unit
    return scaled // denominator, -(-scaled // denominator)


def _shifted_up(number: int, unit: int) -> int:
    return -(-number >> unit)
