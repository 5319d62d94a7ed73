"""Gated functions x·g(x) with a monotone gate 0 ≤ g ≤ 1: GELU and SiLU; `tanh_gates` has others.

They lie between 0 and x although their slope exceeds 1. With a rising gate f' falls from 0 to a
minimum, rises to a maximum and falls to 1, so that f falls to one place and then rises. The two
turns of f' are the places where f'' changes its sign; the proof stands with each function.
"""

import math
from collections.abc import Callable
from typing import Final, TypeAlias

from lipcert.core.enclosures import erf, exp, near, sigmoid
from lipcert.core.interval import Interval, clip, exact
from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules.curves import Curve, Function, Piece

_REACH: Final = 1e10
_ROOT_HALF: Final = near("0.707106781186547524400844362105")
_DENSITY_AT_ZERO: Final = near("0.398942280401432677939946059934")
_HALF: Final = exact(0.5)


Gate: TypeAlias = Callable[[Interval], Interval]


def gated(
    gate: Gate, slope: Gate, lowest: Interval, turns: tuple[Interval, ...], *, rises: bool = True
) -> Function:
    """x·g(x) and g(x) + x·g'(x); a gate that falls exchanges the limits."""
    limits, steep = ((0.0, math.inf), (0.0, 1.0)) if rises else ((-math.inf, 0.0), (1.0, 0.0))
    value = Curve(lambda x: x * gate(x), (lowest,), limits, _REACH)
    steepness = Curve(lambda x: gate(x) + x * slope(x), turns, steep, _REACH)
    return Function(value, (Piece(-math.inf, math.inf, steepness),), shrinks=True)


def gelu() -> Function:
    """x·Φ(x): f'' = (2 − x²)·φ(x)."""
    return gated(
        lambda x: clip(_HALF + _HALF * erf(x * _ROOT_HALF), 0.0, 1.0),
        lambda x: _DENSITY_AT_ZERO * exp(-(_HALF * x * x)),
        near("-0.751791524693564457457904947118"),
        (near("-1.414213562373095048801688724210"), near("1.414213562373095048801688724210")),
    )


def silu() -> Function:
    """x·σ(x): f'' = σ(x)σ(−x)·(2 − x·tanh(x/2)), and x·tanh(x/2) rises with |x|."""
    return quick_gelu(1.0)


def quick_gelu(alpha: float) -> Function:
    """x·σ(αx) = silu(αx)/α."""
    if not 1e-6 <= abs(alpha) <= 1e6:
        raise Unsupported("x·sigmoid(alpha·x) with an extreme alpha")
    factor = exact(alpha)
    inverse = factor.reciprocal()
    turn = near("2.399357280515467667832739697282") * inverse
    return gated(
        lambda x: sigmoid(factor * x),
        lambda x: factor * (sigmoid(factor * x) * sigmoid(-(factor * x))),
        near("-1.278464542761073795109358739022") * inverse,
        (-turn, turn),
        rises=alpha > 0.0,
    )
