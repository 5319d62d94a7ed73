"""The functions that activations apply: values, slopes, and where both turn.

What enters: names and numbers as `program.Activation` defines them. What leaves: `Function`s. The
derivatives of the smooth ones are monotone between the turns stated here, for the reason stated
with them; places that are no simple numbers are given by their digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from lipcert.checker.graph.errors import Unsupported
from lipcert.checker.interval import Interval, down, exact, up
from lipcert.checker.rules import enclosures
from lipcert.checker.rules.curves import Curve, Function, Piece, always, hull
from lipcert.checker.rules.enclosures import clip, constant, exp, near, sigmoid
from lipcert.checker.rules.gates import gelu, gelu_tanh, mish, quick_gelu, silu
from lipcert.checker.rules.waves import Wave

__all__ = ["function"]

_INF: Final = math.inf
_TINY: Final = 5e-324
_REACH: Final = 1e10
_GUARD: Final = 15.0
_LARGEST_EXPONENT: Final = 64
_ZERO, _ONE = constant(0.0), constant(1.0)
_TWO_OVER_ROOT_PI: Final = near("1.12837916709551257389615890312")


def function(name: str, numbers: tuple[float, ...]) -> Function:
    """The function of this name; Unsupported where no rule is known for it."""
    if name not in _FUNCTIONS or not all(number == number for number in numbers):  # noqa: PLR0124
        raise Unsupported(f"no rule is known for the function {name!r}")
    return _FUNCTIONS[name](*numbers)


def _positive(x: Interval) -> Interval:
    return clip(x, 0.0, _INF)


def _negative(x: Interval) -> Interval:
    return clip(x, -_INF, 0.0)


def _finite(name: str, *numbers: float) -> None:
    if not all(math.isfinite(number) for number in numbers):
        raise Unsupported(f"{name} with a number that is not finite")


def _lines(knots: tuple[Interval, ...], slopes: tuple[float, ...]) -> tuple[Piece, ...]:
    """Constant slopes between knots that rise."""
    starts = (-_INF, *(float(knot.lo) for knot in knots))
    stops = (*(float(knot.hi) for knot in knots), _INF)
    return tuple(
        Piece(start, stop, always(slope))
        for start, stop, slope in zip(starts, stops, slopes, strict=True)
    )


def _relu() -> Function:
    return Function(Curve(_positive), _lines((_ZERO,), (0.0, 1.0)), shrinks=True)


def _leaky_relu(alpha: float) -> Function:
    _finite("LeakyRelu", alpha)
    return Function(
        Curve(lambda x: _positive(x) + constant(alpha) * _negative(x), (_ZERO,)),
        _lines((_ZERO,), (alpha, 1.0)),
        shrinks=0.0 <= alpha <= 1.0,
        ratio=always(max(1.0, abs(alpha))),
    )


def _absolute() -> Function:
    return Function(
        Curve(enclosures.absolute, (_ZERO,)),
        _lines((_ZERO,), (-1.0, 1.0)),
        bounds=(0.0, _INF),
        ratio=always(1.0),
    )


def _clip(low: float, high: float) -> Function:
    if not low <= high or low == _INF or high == -_INF:
        raise Unsupported("Clip with no number between its ends")
    knots = constant(low), constant(high)
    return Function(Curve(lambda x: clip(x, low, high)), _lines(knots, (0.0, 1.0, 0.0)))


def _hard_sigmoid(alpha: float, beta: float) -> Function:
    _finite("HardSigmoid", alpha, beta)
    value = Curve(lambda x: clip(constant(alpha) * x + constant(beta), 0.0, 1.0))
    if alpha == 0.0:
        return Function(value, _lines((), (0.0,)))
    knots = [(constant(end) - constant(beta)) * constant(alpha).reciprocal() for end in (0.0, 1.0)]
    low, high = knots if alpha > 0.0 else knots[::-1]
    return Function(value, _lines((low, high), (0.0, alpha, 0.0)), bounds=(0.0, 1.0))


def _soft_threshold(limit: float) -> Function:
    _finite("Shrink", limit)
    if limit < 0.0:
        raise Unsupported("a soft threshold below 0")
    edge = constant(limit)
    return Function(
        Curve(lambda x: _positive(x - edge) + _negative(x + edge)),
        _lines((-edge, edge), (1.0, 0.0, 1.0)),
        shrinks=True,
    )


def _hard_swish() -> Function:
    """x·min(max(x/6 + ½, 0), 1): falls up to −3/2, then rises; slope x/3 + ½ between −3 and 3."""
    three, half = constant(3.0), constant(0.5)
    middle = Curve(lambda x: x * three.reciprocal() + half)
    return Function(
        Curve(
            lambda x: x * clip(x * constant(6.0).reciprocal() + half, 0.0, 1.0), (constant(-1.5),)
        ),
        (
            Piece(-_INF, -3.0, always(0.0)),
            Piece(-3.0, 3.0, middle),
            Piece(3.0, _INF, always(1.0)),
        ),
        shrinks=True,
    )


def _exponential_below(gain: float, scale: float, width: float) -> Function:
    """gain·x for x ≥ 0, gain·scale·(e^(x/width) − 1) below, for width > 0."""
    _finite("Elu, Selu or Celu", gain, scale, width)
    if width <= 0.0:
        raise Unsupported("Celu with an alpha that is not positive")
    above, below = constant(gain), constant(gain) * constant(scale)
    inverse = constant(width).reciprocal()

    def at(x: Interval) -> Interval:
        return above * _positive(x) + below * enclosures.expm1(_negative(x) * inverse)

    slope = Curve(lambda x: below * inverse * clip(exp(x * inverse), 0.0, 1.0))
    return Function(
        Curve(at, (_ZERO,)),
        (Piece(-_INF, 0.0, slope), Piece(0.0, _INF, always(gain))),
        shrinks=0.0 <= gain <= 1.0 and 0.0 <= scale <= width,
    )


def _smooth(value: Curve, slope: Curve, bounds: tuple[float, float], *, shrinks: bool) -> Function:
    return Function(value, (Piece(-_INF, _INF, slope),), bounds, shrinks)


def _bell(at: Callable[[Interval], Interval]) -> Curve:
    """An even function that falls to 0 with growing |x|."""
    return Curve(lambda x: clip(at(x), 0.0, _INF), (_ZERO,), (0.0, 0.0), _REACH)


def _sigmoid() -> Function:
    slope = _bell(lambda x: sigmoid(x) * sigmoid(-x))
    return _smooth(Curve(sigmoid), slope, (0.0, 1.0), shrinks=False)


def _tanh() -> Function:
    """tanh' x = 4σ(2x)σ(−2x)."""
    two, four = constant(2.0), constant(4.0)
    slope = _bell(lambda x: four * sigmoid(two * x) * sigmoid(-(two * x)))
    return _smooth(Curve(enclosures.tanh), slope, (-1.0, 1.0), shrinks=True)


def _atan() -> Function:
    slope = _bell(lambda x: (_ONE + x * x).reciprocal())
    return _smooth(Curve(enclosures.inverse_tangent), slope, (-_INF, _INF), shrinks=True)


def _softsign() -> Function:
    """x/(1 + |x|) = sign(x)·(1 − 1/(1 + |x|)), of slope 1/(1 + |x|)²."""

    def inverse(x: Interval) -> Interval:
        return (_ONE + _positive(x) - _negative(x)).reciprocal()

    value = Curve(lambda x: (_ONE - inverse(_positive(x))) - (_ONE - inverse(_negative(x))))
    slope = _bell(lambda x: inverse(x) * inverse(x))
    return _smooth(value, slope, (-1.0, 1.0), shrinks=True)


def _erf() -> Function:
    slope = _bell(lambda x: _TWO_OVER_ROOT_PI * exp(-(x * x)))
    return _smooth(Curve(enclosures.erf), slope, (-1.0, 1.0), shrinks=False)


def _softplus() -> Function:
    """ln(1 + e^x), or x itself from some guard of 15 or more on, as frameworks compute it.

    From 14 on, x is below both; what is smaller than ln(1 + e^14) has an argument below 14.
    """

    def at(x: Interval) -> Interval:
        smooth = enclosures.softplus(x)
        return Interval(np.where(x.lo >= _GUARD - 1.0, x.lo, smooth.lo), smooth.hi)

    slope = Curve(sigmoid)
    return Function(
        Curve(at),
        (Piece(-_INF, _INF, slope), Piece(_GUARD, _INF, always(1.0))),
        bounds=(0.0, _INF),
    )


def _wave(quarters: int) -> Function:
    """sin(x + quarters·π/2), whose slope is a quarter turn ahead."""
    return Function(Wave(quarters), (Piece(-_INF, _INF, Wave(quarters + 1)),), bounds=(-1.0, 1.0))


def _exp() -> Function:
    return Function(Curve(exp), (Piece(-_INF, _INF, Curve(exp)),), bounds=(0.0, _INF))


def _log() -> Function:
    slope = Curve(lambda x: x.reciprocal())
    return Function(Curve(enclosures.log), (Piece(-_INF, _INF, slope),), least=_TINY)


def _root(x: Interval) -> Interval:
    return Interval(down(np.sqrt(np.maximum(x.lo, 0.0))), up(np.sqrt(np.maximum(x.hi, 0.0))))


def _sqrt() -> Function:
    slope = Curve(lambda x: (constant(2.0) * _root(x)).reciprocal())
    return Function(Curve(_root), (Piece(-_INF, _INF, slope),), bounds=(0.0, _INF), least=0.0)


def _power(exponent: float) -> Function:
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


_FUNCTIONS: Final[dict[str, Callable[..., Function]]] = {
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "abs": _absolute,
    "clip": _clip,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "elu": lambda alpha: _exponential_below(1.0, alpha, 1.0),
    "selu": lambda alpha, gamma: _exponential_below(gamma, alpha, 1.0),
    "celu": lambda alpha: _exponential_below(1.0, alpha, alpha),
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "atan": _atan,
    "softplus": _softplus,
    "softsign": _softsign,
    "erf": _erf,
    "sin": lambda: _wave(0),
    "cos": lambda: _wave(1),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "quick_gelu": quick_gelu,
    "mish": mish,
    "exp": _exp,
    "log": _log,
    "sqrt": _sqrt,
    "reciprocal": lambda: _power(-1.0),
    "power": _power,
    "soft_threshold": _soft_threshold,
}
