"""Powers, exponentials and logarithms, some of which are not defined everywhere."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from lipcert.core import enclosures
from lipcert.core.enclosures import between, exp
from lipcert.core.interval import Interval, clip, exact
from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules.curves import Curve, Function, Piece, always

_INF: Final = math.inf
_TINY: Final = 5e-324
_LARGEST_EXPONENT: Final = 64
_ZERO, _ONE = exact(0.0), exact(1.0)


def exponential() -> Function:
    """e^x."""
    return Function(Curve(exp), (Piece(-_INF, _INF, Curve(exp)),), bounds=(0.0, _INF))


def elu(alpha: float) -> Function:
    """x for x ≥ 0, alpha·(e^x − 1) below."""
    return _exponential_below(1.0, alpha, 1.0)


def selu(alpha: float, gamma: float) -> Function:
    """gamma·elu(x)."""
    return _exponential_below(gamma, alpha, 1.0)


def celu(alpha: float) -> Function:
    """x for x ≥ 0, alpha·(e^(x/alpha) − 1) below, for alpha > 0."""
    return _exponential_below(1.0, alpha, alpha)


def expm1(x: Interval) -> Interval:
    """e^x − 1 for x ≤ 0, where it lies in [−1, 0] and above x."""
    return between(clip(exp(x) - _ONE, -1.0, 0.0), x)


def _exponential_below(gain: float, scale: float, width: float) -> Function:
    """gain·x for x ≥ 0, gain·scale·(e^(x/width) − 1) below, for width > 0."""
    if not all(map(math.isfinite, (gain, scale, width))):
        raise Unsupported("Elu, Selu or Celu with a number that is not finite")
    if width <= 0.0:
        raise Unsupported("Celu with an alpha that is not positive")
    above, below = exact(gain), exact(gain) * exact(scale)
    inverse = exact(width).reciprocal()

    def at(x: Interval) -> Interval:
        return above * clip(x, 0.0, _INF) + below * expm1(clip(x, -_INF, 0.0) * inverse)

    slope = Curve(lambda x: below * inverse * clip(exp(x * inverse), 0.0, 1.0))
    return Function(
        Curve(at, (_ZERO,)),
        (Piece(-_INF, 0.0, slope), Piece(0.0, _INF, always(gain))),
        shrinks=0.0 <= gain <= 1.0 and 0.0 <= scale <= width,
    )


def logarithm() -> Function:
    """ln x, for x > 0."""
    slope = Curve(lambda x: x.reciprocal())
    return Function(Curve(enclosures.log), (Piece(-_INF, _INF, slope),), least=_TINY)


def square_root() -> Function:
    """√x, for x ≥ 0."""
    value, slope = Curve(Interval.root), Curve(lambda x: (exact(2.0) * x.root()).reciprocal())
    return Function(value, (Piece(-_INF, _INF, slope),), bounds=(0.0, _INF), least=0.0)


def power(exponent: float) -> Function:
    """x^exponent, with slope exponent·x^(exponent − 1): both monotone on either side of 0."""
    if not abs(exponent) <= 2.0**20:
        raise Unsupported("a power with too large an exponent")
    lower = exact(exponent) - _ONE
    whole = exponent.is_integer() and abs(exponent) <= _LARGEST_EXPONENT
    if exponent == 0.0:
        return Function(always(1.0), (Piece(-_INF, _INF, always(0.0)),))
    if whole:
        at, ratio = (_whole_power(n) for n in (int(exponent), int(exponent) - 1))
    else:
        at, ratio = (_real_power(n) for n in (exact(exponent), lower))
    turns = (_ZERO,) if whole else ()
    slope = Curve(lambda x: exact(exponent) * ratio(x), turns)
    return Function(
        Curve(at, turns),
        (Piece(-_INF, _INF, slope),),
        bounds=(-_INF if whole and exponent % 2.0 else 0.0, _INF),
        least=-_INF if whole else (0.0 if exponent > 0.0 else _TINY),
        ratio=Curve(ratio, turns) if exponent >= 1.0 else None,
    )


def reciprocal() -> Function:
    """1/x, on either side of 0."""
    return power(-1.0)


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
