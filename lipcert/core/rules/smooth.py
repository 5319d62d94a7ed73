"""Smooth functions: sigmoids and softplus. The slopes of sigmoids are even bells."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from lipcert.core import enclosures
from lipcert.core.enclosures import HALF_PI, TWO_OVER_ROOT_PI, between, exp, log
from lipcert.core.enclosures import sigmoid as logistic
from lipcert.core.interval import Interval, absolute, clip, exact
from lipcert.core.rules.curves import Curve, Function, Piece, always

_INF: Final = math.inf
_REACH: Final = 1e10
_GUARD: Final = 15.0
_HALVINGS: Final = 5
_FAR: Final = 2.0**200
_ZERO, _ONE = exact(0.0), exact(1.0)


def _smooth(value: Curve, slope: Curve, bounds: tuple[float, float], *, shrinks: bool) -> Function:
    return Function(value, (Piece(-_INF, _INF, slope),), bounds, shrinks)


def _bell(at: Callable[[Interval], Interval]) -> Curve:
    """An even function that falls to 0 with growing |x|."""
    return Curve(lambda x: clip(at(x), 0.0, _INF), (_ZERO,), (0.0, 0.0), _REACH)


def sigmoid() -> Function:
    """σ(x) = 1/(1 + e^−x), of slope σ(x)σ(−x)."""
    slope = _bell(lambda x: logistic(x) * logistic(-x))
    return _smooth(Curve(logistic), slope, (0.0, 1.0), shrinks=False)


def tanh() -> Function:
    """tanh' x = 4σ(2x)σ(−2x)."""
    two, four = exact(2.0), exact(4.0)
    slope = _bell(lambda x: four * logistic(two * x) * logistic(-(two * x)))
    return _smooth(Curve(enclosures.tanh), slope, (-1.0, 1.0), shrinks=True)


def atan() -> Function:
    """The inverse tangent, of slope 1/(1 + x²)."""
    slope = _bell(lambda x: (_ONE + x * x).reciprocal())
    return _smooth(Curve(inverse_tangent), slope, (-_INF, _INF), shrinks=True)


def softsign() -> Function:
    """x/(1 + |x|), of slope 1/(1 + |x|)²."""

    def inverse(x: Interval) -> Interval:
        return (_ONE + absolute(x)).reciprocal()

    value = Curve(lambda x: x * inverse(x), limits=(-1.0, 1.0), reach=_REACH)
    slope = _bell(lambda x: inverse(x) * inverse(x))
    return _smooth(value, slope, (-1.0, 1.0), shrinks=True)


def erf() -> Function:
    """The error function, of slope (2/√π)·e^−x²."""
    slope = _bell(lambda x: TWO_OVER_ROOT_PI * exp(-(x * x)))
    return _smooth(Curve(enclosures.erf), slope, (-1.0, 1.0), shrinks=False)


def softplus() -> Function:
    """ln(1 + e^x), or x itself from some guard of 15 or more on, as frameworks compute it.

    From 14 on, x is below both; what is smaller than ln(1 + e^14) has an argument below 14.
    """

    def at(x: Interval) -> Interval:
        smooth = softplus_of(x)
        return Interval(np.where(x.lo >= _GUARD - 1.0, x.lo, smooth.lo), smooth.hi)

    slope = Curve(logistic)
    return Function(
        Curve(at), (Piece(-_INF, _INF, slope), Piece(_GUARD, _INF, always(1.0))), bounds=(0.0, _INF)
    )


def inverse_tangent(x: Interval) -> Interval:
    """arctan x, which rises.

    Proof: arctan x = 2·arctan(x/(1 + √(1 + x²))), five times, after which the angle is at most
    π/64, its tangent below 0.05, and arctan y = y·(1 − y²/3 + … − y¹⁰/11 + s·y¹²) for some
    0 ≤ s ≤ 1/13, as the series alternates. Beyond ±2^200 up to ±π/2.
    """
    ends = []
    for points in (x.lo, x.hi):
        y = exact(np.clip(points, -_FAR, _FAR))
        for _ in range(_HALVINGS):
            y = y * (_ONE + (_ONE + y * y).root()).reciprocal()
        square = clip(y * y, 0.0, 0.0025)
        series = Interval(np.zeros(()), np.asarray(1.0 / 12.0))
        for odd in (11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
            series = exact(odd).reciprocal() - square * series
        ends.append(exact(2.0**_HALVINGS) * y * series)
    edge = float(HALF_PI.hi)
    low = np.where(x.lo < -_FAR, -edge, ends[0].lo)
    high = np.where(x.hi > _FAR, edge, ends[1].hi)
    return between(clip(Interval(low, high), -edge, edge), x)


def softplus_of(x: Interval) -> Interval:
    """ln(1 + e^x) = max(x, 0) + ln(1 + e^−|x|), which rises, and is at least max(x, 0)."""
    low, high = (
        exact(np.maximum(points, 0.0)) + log(_ONE + exp(exact(-np.abs(points))))
        for points in (x.lo, x.hi)
    )
    return Interval(np.maximum(low.lo, np.maximum(x.lo, 0.0)), high.hi)
