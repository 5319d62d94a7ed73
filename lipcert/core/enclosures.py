"""Enclosures of elementary functions of arrays, by IEEE +, −, ×, ÷, √ only.

Input: intervals (infinite ends allowed). Output: intervals that contain the function at every point
of them, about 1e-13 wide where the argument is a point. No library function is trusted: where one
is called, its result is a guess that the following code corrects.
"""

from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import round_down, round_up
from lipcert.core.interval import Array, Interval, clip, down, exact, up

_REACH: Final = 700.0
_LN2_HIGH: Final = float.fromhex("0x1.62e42feep-1")
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
_EXP_ERROR: Final = 2.0**-46
_ERF_REACH: Final = 5.25
_ERF_ERROR: Final = 2.0**-42
_ERF_TERMS: Final = 150


def between(image: Interval, x: Interval) -> Interval:
    """Restrict the image under a function that lies between 0 and x to that range."""
    return Interval(
        np.maximum(image.lo, np.minimum(x.lo, 0.0)), np.minimum(image.hi, np.maximum(x.hi, 0.0))
    )


def near(digits: str) -> Interval:
    """Enclose a number from 20 or more digits behind the point, cut or rounded."""
    number, error = Fraction(digits), Fraction(1, 10**20)
    return Interval(np.asarray(round_down(number - error)), np.asarray(round_up(number + error)))


HALF_PI: Final = near("1.57079632679489661923132169164")
TWO_OVER_ROOT_PI: Final = near("1.12837916709551257389615890312")
_ONE: Final = exact(1.0)


def exp(x: Interval) -> Interval:
    """Enclose e^x, which increases; beyond ±700 by [0, e^-700] and [e^700, inf] only."""
    low, high = np.clip(x.lo, -_REACH, _REACH), np.clip(x.hi, -_REACH, _REACH)
    least, most = down(_exp(low) * (1.0 - _EXP_ERROR)), up(_exp(high) * (1.0 + _EXP_ERROR))
    return Interval(np.where(x.lo < -_REACH, 0.0, least), np.where(x.hi > _REACH, np.inf, most))


def _exp(x: Array) -> Array:
    """e^x for |x| ≤ 700, with a relative error below 2^-47.

    Proof (u = 2^-53): x = k·ln 2 + r. k has 10 bits and the high part of ln 2 has 32, so k·high is
    exact; both differences are below 1/2 and round by 2^-55, k·low by less, and high + low is
    ln 2 up to 2^-84: r is known to 2^-53. Σ_{n ≤ 14} r^n/n! misses less than 2^-60 for
    |r| ≤ 0.36, which is checked. In its Horner form v ← 1 + r·v/n, |v| ≤ 1.44, an error e becomes
    at most 0.36e + 0.36·1.44·2.01u + 1.5u, hence stays below 5u. Together less than 8u, of e^r ≥
    0.69. Scaling by 2^k is exact: the result is a normal number.
    """
    shift = np.rint(x * 1.4426950408889634)
    rest = (x - shift * _LN2_HIGH) - shift * _LN2_LOW
    if not (np.abs(rest) <= 0.36).all():
        raise ArithmeticError("the argument of exp was not reduced")
    value = np.ones_like(rest)
    for n in range(14, 0, -1):
        value = 1.0 + rest * value / n
    return np.asarray(np.ldexp(value, shift.astype(np.int64)))


def log(x: Interval) -> Interval:
    """Enclose ln x, which increases; −inf at and below 0.

    Proof: ln x = g + ln q with q = x·e^−g for any guess g, and 1 − 1/q ≤ ln q ≤ q − 1 for q > 0.
    """
    ends = []
    for points in (x.lo, x.hi):
        known = (points > 0.0) & (points < np.inf)
        inner = np.where(known, points, 1.0)
        guess = exact(np.clip(np.log(inner), -_REACH, _REACH))
        quotient = exact(inner) * exp(-guess)
        low, high = guess + (_ONE - quotient.reciprocal()), guess + (quotient - _ONE)
        edge = np.where(points > 0.0, np.inf, -np.inf)
        ends.append((np.where(known, low.lo, edge), np.where(known, high.hi, edge)))
    return Interval(ends[0][0], ends[1][1])


def sigmoid(x: Interval) -> Interval:
    """1/(1 + e^−x)."""
    return clip((_ONE + exp(-x)).reciprocal(), 0.0, 1.0)


def tanh(x: Interval) -> Interval:
    """1 − 2/(1 + e^2x), between 0 and x."""
    near_one = _ONE - exact(2.0) * (_ONE + exp(exact(2.0) * x)).reciprocal()
    return between(clip(near_one, -1.0, 1.0), x)


def erf(x: Interval) -> Interval:
    """Enclose the error function, which increases; 1 − |erf| < 2^-42 beyond ±5.25."""
    low, high = _erf(x.lo).lo, _erf(x.hi).hi
    return clip(Interval(low, high), -1.0, 1.0)


def _erf(x: Array) -> Interval:
    """(2/√π)·x·e^−x²·S with S = Σ_n t_n, t_0 = 1, t_{n+1} = t_n·2x²/(2n + 3).

    Proof: this is Kummer's series, with positive terms. t_n has 4n roundings, the sum up to it n
    more: a relative error below 5.1n·u < 2^-43 for n ≤ 150. Once 2x²/(2n + 3) ≤ 1/2, the terms
    after t_n add up to at most t_n; the loop ends when that is at most 2^-50 of the sum.
    """
    inner = np.clip(x, -_ERF_REACH, _ERF_REACH)
    double = 2.0 * (inner * inner)
    term, total, n = np.ones_like(inner), np.ones_like(inner), 0
    while (term > total * 2.0**-50).any() or 2.0 * np.max(double, initial=0.0) > 2 * n + 3:
        term = term * double / (2 * n + 3)
        total, n = total + term, n + 1
        if n > _ERF_TERMS:
            raise ArithmeticError("the series of the error function did not converge")
    series = Interval(down(total * (1.0 - _ERF_ERROR)), up(total * (1.0 + _ERF_ERROR)))
    point = exact(inner)
    value = TWO_OVER_ROOT_PI * point * exp(-(point * point)) * series
    last = 1.0 - 2.0**-42
    return Interval(
        np.where(x > _ERF_REACH, last, np.where(x < -_ERF_REACH, -1.0, value.lo)),
        np.where(x > _ERF_REACH, 1.0, np.where(x < -_ERF_REACH, -last, value.hi)),
    )
