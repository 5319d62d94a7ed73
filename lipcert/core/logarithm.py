"""Enclose log of rational numbers, by exact integers: the counterpart of `exponential`."""

from fractions import Fraction
from functools import cache


def log_bounds(x: Fraction, bits: int = 80) -> tuple[Fraction, Fraction]:
    """Return lo ≤ log x ≤ hi with hi − lo ≤ 2^-bits·(1 + |log x|), for x > 0.

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


@cache
def _log_two(unit: int) -> tuple[int, int]:
    """Enclose half of log 2, in units of 2^-unit."""
    return _artanh(Fraction(1, 3), unit)


def _artanh(z: Fraction, unit: int) -> tuple[int, int]:
    """Enclose artanh z = Σ z^(2n+1)/(2n+1) in units of 2^-unit, for |z| ≤ 1/3.

    The terms after a term sum to at most 1/8 of it, since z² ≤ 1/9.
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
    """Return numerator/denominator·2^unit rounded down, and rounded up."""
    scaled = numerator << unit
    return scaled // denominator, -(-scaled // denominator)


def _shifted_up(number: int, unit: int) -> int:
    return -(-number >> unit)
