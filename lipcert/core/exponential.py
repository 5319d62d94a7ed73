"""Enclose exp of rational numbers, by exact integers.

Input: a rational number, and the number of bits wanted. Output: two rational numbers with the exact
result between them. No floating-point number is involved.
"""

from fractions import Fraction
from typing import Final, TypeAlias

Quotient: TypeAlias = tuple[int, int]
"""A quotient of an integer by a positive one; they may have common factors."""
_LARGEST: Final = 1 << 17


def exp_bounds(x: Fraction, bits: int = 80) -> tuple[Fraction, Fraction]:
    """Return lo ≤ e^x ≤ hi with hi/lo ≤ 1 + 2^-bits; raise ValueError for |x| > 2^17."""
    low, high = exp_quotients(x.numerator, x.denominator, bits)
    return Fraction(*low), Fraction(*high)


def exp_quotients(numerator: int, denominator: int, bits: int) -> tuple[Quotient, Quotient]:
    """Return the bounds of `exp_bounds`, for x = numerator/denominator.

    Proof: e^−x = 1/e^x, so let x ≥ 0, and r = x/2^k ≤ 2^-6. In units of 2^-p, each term of
    Σ r^n/n! is computed from the one before, all rounded downwards or all upwards, until one is 0
    downwards, or at most 1 upwards. Later terms are at most 2^-6 of their predecessors, so that
    twice the first unused one covers them. Squaring k times, rounded the same way, gives e^x.
    Width: fewer than p/6 + 2 terms err by less than 2 units each, a squaring doubles the relative
    error, and p = bits + k + 16 + log2(bits) leaves room for all.
    """
    below, one = _directed(abs(numerator), denominator, bits, 1)
    above, _ = _directed(abs(numerator), denominator, bits, -1)
    if numerator < 0:
        return (one, above), (one, below)
    return (below, one), (above, one)


def exp_near(numerator: int, denominator: int, bits: int) -> Quotient:
    """Return the bound of `exp_quotients` that is computed by rounding downwards only."""
    below, one = _directed(abs(numerator), denominator, bits, 1)
    return (one, below) if numerator < 0 else (below, one)


def _directed(size: int, denominator: int, bits: int, side: int) -> tuple[int, int]:
    """Return e^(size/denominator)·2^p, rounded downwards (side 1) or upwards (−1), and 2^p."""
    if size > _LARGEST * denominator:
        raise ValueError("the argument of exp is too large")
    halvings = max(0, (size << 6).bit_length() - denominator.bit_length() + 1)
    unit = bits + halvings + 16 + bits.bit_length()
    r = abs((side * size << unit) // (denominator << halvings))
    total, term, n = 0, side << unit, 0
    while term > 0 or term < -1:
        total, n = total + term, n + 1
        term = (term * r >> unit) // n
    total += 2 * term
    for _ in range(halvings):
        total = total * abs(total) >> unit
    return abs(total), 1 << unit
