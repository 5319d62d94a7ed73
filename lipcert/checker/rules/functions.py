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
from lipcert.checker.rules import kinks, powers
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
        return (_ONE + positive(x) - negative(x)).reciprocal()

    value = Curve(lambda x: (_ONE - inverse(positive(x))) - (_ONE - inverse(negative(x))))
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


_FUNCTIONS: Final[dict[str, Callable[..., Function]]] = {
    "relu": relu,
    "leaky_relu": leaky_relu,
    "abs": absolute,
    "clip": clipped,
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": hard_swish,
    "elu": lambda alpha: exponential_below(1.0, alpha, 1.0),
    "selu": lambda alpha, gamma: exponential_below(gamma, alpha, 1.0),
    "celu": lambda alpha: exponential_below(1.0, alpha, alpha),
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
    "exp": exponential,
    "log": logarithm,
    "sqrt": square_root,
    "reciprocal": lambda: power(-1.0),
    "power": power,
    "soft_threshold": soft_threshold,
}
