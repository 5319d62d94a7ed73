"""Gates by tanh, as in `gates`: the usual approximation of GELU, and Mish."""

from typing import Final

import numpy as np

from lipcert.core.enclosures import exp, near, sigmoid, tanh
from lipcert.core.interval import Interval, clip, exact
from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules.curves import Function
from lipcert.core.rules.gates import Gate, gated

_MISH_REACH: Final = (-300.0, 100.0)
_ROOT_TWO_OVER_PI: Final = near("0.797884560802865355879892119869")
_CUBIC: Final = near("0.044715000000000000000000000000")
_ONE, _TWO, _THREE, _SIX = exact(1.0), exact(2.0), exact(3.0), exact(6.0)
_MODERATE: Final = (2.0**-20, 2.0**20)
_STEPS: Final = 120
_SHARE: Final = 0.47
"""off the middle: the place that is looked for may be a round number"""


def gelu_tanh(slope: float | None = None, cubic: float | None = None) -> Function:
    """x·σ(2u), u = c(x + kx³), with any two numbers c, k > 0; √(2/π) and 0.044715 without them.

    Proof: f'' has the sign of c(1 + 6kx²) − x·tanh(u)·u'². Over c(1 + 6kx²) that is 1 less a
    product, for x > 0, of x·tanh(u) and c(1 + 9k²x⁴/(1 + 6kx²)), which both rise; it is even. So
    f' falls from 0, rises to above 1 and falls to 1, and is 0 once, where 1 + 2xu'·σ(−2u) is.
    """
    if slope is None or cubic is None:
        return _tanh_gate(
            _ROOT_TWO_OVER_PI,
            _CUBIC,
            near("-0.752461422071016258487954443289"),
            near("1.418504008790828355548033545600"),
        )
    if not all(_MODERATE[0] <= number <= _MODERATE[1] for number in (slope, cubic)):
        raise Unsupported("a GELU by tanh with extreme numbers")
    c, k = exact(slope), exact(cubic)

    def falls(x: Interval) -> Interval:
        """A function with the sign of f'(−x)."""
        steep = c * (_ONE + _THREE * k * (x * x))
        return _ONE - _TWO * x * steep * sigmoid(_TWO * c * x * (_ONE + k * (x * x)))

    def bends(x: Interval) -> Interval:
        """A function with the sign of f''(x)."""
        u, steep = c * x * (_ONE + k * (x * x)), c * (_ONE + _THREE * k * (x * x))
        return c * (_ONE + _SIX * k * (x * x)) - x * tanh(u) * steep * steep

    return _tanh_gate(c, k, -_crossing(falls), _crossing(bends))


def _tanh_gate(c: Interval, k: Interval, lowest: Interval, turn: Interval) -> Function:
    """x·σ(2c(x + kx³)) with the place of its minimum, and that of its largest slope."""

    def cubic(x: Interval) -> Interval:
        return _TWO * c * x * (_ONE + k * (x * x))

    def slope(x: Interval) -> Interval:
        inner = _TWO * c * (_ONE + _THREE * k * (x * x))
        return inner * (sigmoid(cubic(x)) * sigmoid(-cubic(x)))

    return gated(lambda x: sigmoid(cubic(x)), slope, lowest, (-turn, turn))


def _crossing(sign: Gate) -> Interval:
    """Around the one place x > 0 where a function that is positive at 0 changes its sign.

    Proof: intervals show it positive at the left end, and negative at the right one.
    """
    left, right = 0.0, 1.0
    while not (sign(exact(right)).hi < 0.0).all():
        right *= 2.0
    for _ in range(_STEPS):
        between = left + _SHARE * (right - left)
        found = sign(exact(between))
        if (found.lo > 0.0).all():
            left = between
        elif (found.hi < 0.0).all():
            right = between
        else:
            break
    return Interval(np.asarray(left), np.asarray(right))


def mish() -> Function:
    """x·tanh(ln(1 + e^x)) = x·w(w + 2)/q with w = e^x, q = w² + 2w + 2; g' = 4w(w + 1)/q².

    Proof: with p = 2w³ + 3w² − 2w − 2, f'' = 0 exactly where x = R(w) = 2(w + 1)q/p. The numerator
    of R' is −2(3w⁴ + 20w³ + 36w² + 24w + 4) < 0, so R falls on either side of the one positive
    root of p while x = ln w rises: one solution below the root (R from −2 to −inf), one above.
    """

    def parts(x: Interval) -> tuple[Interval, Interval]:
        w = exp(clip(x, *_MISH_REACH))
        return w, (w * w + _TWO * w + _TWO).reciprocal()

    def gate(x: Interval) -> Interval:
        """Beyond the reach, between the value there and the limits 0 and 1."""
        w, inverse = parts(x)
        value = clip(w * (w + _TWO) * inverse, 0.0, 1.0)
        low, high = x.lo < _MISH_REACH[0], x.hi > _MISH_REACH[1]
        return Interval(np.where(low, 0.0, value.lo), np.where(high, 1.0, value.hi))

    def slope(x: Interval) -> Interval:
        """Beyond the reach, between 0 and the value there."""
        w, inverse = parts(x)
        value = exact(4.0) * w * (w + _ONE) * inverse * inverse
        beyond = (x.lo < _MISH_REACH[0]) | (x.hi > _MISH_REACH[1])
        return Interval(np.where(beyond, 0.0, value.lo), value.hi)

    return gated(
        gate,
        slope,
        near("-1.192431214515495212137588340421"),
        (near("-2.256376396360793120005748543950"), near("1.490571179485428459294418908198")),
    )
