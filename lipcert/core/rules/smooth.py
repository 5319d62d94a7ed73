"""Smooth functions: sigmoids and softplus. The slopes of sigmoids are even bells."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from lipcert.core.interval import Interval, absolute, clip, exact
from lipcert.core.rules import enclosures
from lipcert.core.rules.curves import Curve, Function, Piece, always
from lipcert.core.rules.enclosures import TWO_OVER_ROOT_PI, exp
from lipcert.core.rules.enclosures import sigmoid as logistic

_INF: Final = math.inf
_REACH: Final = 1e10
_GUARD: Final = 15.0
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
    return _smooth(Curve(enclosures.inverse_tangent), slope, (-_INF, _INF), shrinks=True)


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
        smooth = enclosures.softplus(x)
        return Interval(np.where(x.lo >= _GUARD - 1.0, x.lo, smooth.lo), smooth.hi)

    slope = Curve(logistic)
    return Function(
        Curve(at),
        (Piece(-_INF, _INF, slope), Piece(_GUARD, _INF, always(1.0))),
        bounds=(0.0, _INF),
    )
