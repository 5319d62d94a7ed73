"""Powers, exponentials and logarithms, some of which are not defined everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from lipcert.core.interval import Interval, down, exact, up
from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules import enclosures
from lipcert.core.rules.curves import Curve, Function, Piece, always
from lipcert.core.rules.enclosures import constant, exp

_INF: Final = math.inf
_TINY: Final = 5e-324
_LARGEST_EXPONENT: Final = 64
_ZERO, _ONE = constant(0.0), constant(1.0)


def exponential() -> Function:
    """e^x."""
    return Function(Curve(exp), (Piece(-_INF, _INF, Curve(exp)),), bounds=(0.0, _INF))


def logarithm() -> Function:
    """ln x, for x > 0."""
    slope = Curve(lambda x: x.reciprocal())
    return Function(Curve(enclosures.log), (Piece(-_INF, _INF, slope),), least=_TINY)


def _root(x: Interval) -> Interval:
    return Interval(down(np.sqrt(np.maximum(x.lo, 0.0))), up(np.sqrt(np.maximum(x.hi, 0.0))))


def square_root() -> Function:
    """√x, for x ≥ 0."""
    slope = Curve(lambda x: (constant(2.0) * _root(x)).reciprocal())
    return Function(Curve(_root), (Piece(-_INF, _INF, slope),), bounds=(0.0, _INF), least=0.0)


def power(exponent: float) -> Function:
    """x^exponent, with slope exponent·x^(exponent − 1): both monotone on either side of 0."""
    if not abs(exponent) <= 2.0**20:
        raise Unsupported("a power with too large an exponent")
    lower = constant(exponent) - _ONE
    whole = exponent.is_integer() and abs(exponent) <= _LARGEST_EXPONENT
    if exponent == 0.0:
        return Function(always(1.0), (Piece(-_INF, _INF, always(0.0)),))
    if whole:
        at, ratio = (_whole_power(n) for n in (int(exponent), int(exponent) - 1))
    else:
        at, ratio = (_real_power(n) for n in (constant(exponent), lower))
    turns = (_ZERO,) if whole else ()
    slope = Curve(lambda x: constant(exponent) * ratio(x), turns)
    return Function(
        Curve(at, turns),
        (Piece(-_INF, _INF, slope),),
        bounds=(-_INF if whole and exponent % 2.0 else 0.0, _INF),
        least=-_INF if whole else (0.0 if exponent > 0.0 else _TINY),
        ratio=Curve(ratio, turns) if exponent >= 1.0 else None,
    )


def _whole_power(n: int) -> Callable[[Interval], Interval]:
    """x^n by |n| products: the whole line where that is 1/0."""

    def at(x: Interval) -> Interval:
        value = exact(np.ones(x.shape))
        for _ in range(abs(n)):
            value = value * x
        return value if n >= 0 else value.reciprocal()

    return at


def _real_power(exponent: Interval) -> Callable[[Interval], Interval]:
    """x^exponent = e^(exponent·ln x) for x ≥ 0."""
    return lambda x: exp(exponent * enclosures.log(x))
