"""Functions with kinks: pieces of lines, and of one parabola."""

import math
from typing import Final

from lipcert.core import interval
from lipcert.core.interval import Interval, clip, exact
from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules.curves import Curve, Function, Piece, always

_INF: Final = math.inf
_ZERO: Final = exact(0.0)


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


def leaky_relu(alpha: float) -> Function:
    """x for x ≥ 0, alpha·x below; any alpha."""
    _finite("LeakyRelu", alpha)
    return Function(
        Curve(lambda x: _positive(x) + exact(alpha) * _negative(x), (_ZERO,)),
        _lines((_ZERO,), (alpha, 1.0)),
        shrinks=0.0 <= alpha <= 1.0,
        ratio=always(max(1.0, abs(alpha))),
    )


def absolute() -> Function:
    """|x|."""
    return Function(
        Curve(interval.absolute, (_ZERO,)),
        _lines((_ZERO,), (-1.0, 1.0)),
        bounds=(0.0, _INF),
        ratio=always(1.0),
    )


def clipped(low: float, high: float) -> Function:
    """min(max(x, low), high)."""
    if not low <= high or low == _INF or high == -_INF:
        raise Unsupported("Clip with no number between its ends")
    knots = exact(low), exact(high)
    return Function(Curve(lambda x: clip(x, low, high)), _lines(knots, (0.0, 1.0, 0.0)))


def hard_sigmoid(alpha: float, beta: float) -> Function:
    """min(max(alpha·x + beta, 0), 1); any sign of alpha."""
    _finite("HardSigmoid", alpha, beta)
    value = Curve(lambda x: clip(exact(alpha) * x + exact(beta), 0.0, 1.0))
    if alpha == 0.0:
        return Function(value, _lines((), (0.0,)))
    knots = [(exact(end) - exact(beta)) * exact(alpha).reciprocal() for end in (0.0, 1.0)]
    low, high = knots if alpha > 0.0 else knots[::-1]
    return Function(value, _lines((low, high), (0.0, alpha, 0.0)), bounds=(0.0, 1.0))


def soft_threshold(limit: float) -> Function:
    """x − clip(x, −limit, limit) = max(x − limit, 0) + min(x + limit, 0), both of which rise."""
    _finite("Shrink", limit)
    if limit < 0.0:
        raise Unsupported("a soft threshold below 0")
    edge = exact(limit)
    return Function(
        Curve(lambda x: _positive(x - edge) + _negative(x + edge)),
        _lines((-edge, edge), (1.0, 0.0, 1.0)),
        shrinks=True,
    )


def hard_swish() -> Function:
    """x·min(max(x/6 + ½, 0), 1): falls up to −3/2, then rises; slope x/3 + ½ between −3 and 3."""
    three, half = exact(3.0), exact(0.5)
    middle = Curve(lambda x: x * three.reciprocal() + half)
    return Function(
        Curve(lambda x: x * clip(x * exact(6.0).reciprocal() + half, 0.0, 1.0), (exact(-1.5),)),
        (Piece(-_INF, -3.0, always(0.0)), Piece(-3.0, 3.0, middle), Piece(3.0, _INF, always(1.0))),
        shrinks=True,
    )
