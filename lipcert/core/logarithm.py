"""log of rational numbers, by exact integers: the counterpart of `exponential`."""

import math
from fractions import Fraction
from functools import cache

from lipcert.core.circle import GUARD, inverse_series


def log_bounds(x: Fraction, bits: int = 80) -> tuple[Fraction, Fraction]:
    """Return lo ≤ log x ≤ hi with hi − lo ≤ 2^-bits·(1 + |log x|), for x > 0.

    Proof: x = m·2^e with ½ < m < 2. In the units here m is off by less than 1, log m by less than
    2 + 2, and e·log 2 by less than |e|, for |log x| ≥ (|e| − 1)·log 2.
    """
    if x <= 0:
        raise ValueError("the argument of log is not positive")
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    unit = bits + 16 + bits.bit_length()
    above, below = max(unit - exponent, 0), max(exponent - unit, 0)
    scaled = (x.numerator << above) // (x.denominator << below)
    found, error = logarithm(scaled, unit) + exponent * _log_two(unit), 4 + abs(exponent)
    return Fraction(found - error, 1 << unit), Fraction(found + error, 1 << unit)


def logarithm(x: int, bits: int) -> int:
    """Return log x for x > 0 in fixed point, off by less than 2.

    Proof: x = 2^n·m with 1 ≤ m < 2, and log m = 16·artanh((s−1)/(s+1)) with s = m^(1/8), whose
    argument is below 0.05. In the wide numbers s is off by 2, the argument by 3, the series by
    the number of its terms < 2^12 more, n·log 2 by |n|: below 2^17 of 2^−(bits+64), |n| < 2^16.
    """
    if x <= 0:
        raise ValueError("no logarithm")
    wide = bits + GUARD
    n = x.bit_length() - 1 - bits
    root = x << (wide - bits - n) if n <= wide - bits else x >> (n - wide + bits)
    for _ in range(3):
        root = math.isqrt(root << wide)
    one = 1 << wide
    power = ((root - one) << wide) // (root + one)
    square = power * power >> wide
    total, k = 0, 1
    while power:
        total += power // k
        power = power * square >> wide
        k += 2
    return (16 * total + n * _log_two(wide)) >> GUARD


@cache
def _log_two(bits: int) -> int:
    """Return log 2 = 2·artanh(1/3), off by less than 1."""
    return 2 * inverse_series(3, bits + GUARD, 1) >> GUARD
