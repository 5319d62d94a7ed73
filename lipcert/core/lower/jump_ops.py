"""Functions that jump, of constants: the same for a number and its float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.moves import broadcast
from lipcert.core.lower.values import Constant, Value

Array = npt.NDArray[Any]
_READINGS: Final = "it jumps between a number and its float32, so it has two readings"


def equal(call: Call) -> Value:
    """Equality of exact numbers; c·N for c > 0 is not equal to a number below 1."""
    first, second = call.constant(0), call.constant(1)
    shape, place = broadcast((first, second))
    left, right = (np.broadcast_to(item.grown(), shape) for item in (first, second))
    a, b = np.broadcast_to(first.lo, shape), np.broadcast_to(second.lo, shape)
    known = ~(left | right)
    known |= (left & ~right & (a > 0) & (b <= 0)) | (right & ~left & (b > 0) & (a <= 0))
    if first.lo is not first.hi or second.lo is not second.hi or not known.all():
        raise Unsupported("it compares with the size of the batch, or numbers that are not exact")
    call.sink.untracked.update([*first.sources, *second.sources])
    flags = np.asarray((a == b) & ~(left | right))
    if not np.array_equal(flags, (_rounded(a) == _rounded(b)) & ~(left | right)):
        raise Unsupported(_READINGS)
    return Constant(flags, flags, {}, place)


def exactly(function: Callable[..., Any]) -> Callable[[Call], Value]:
    """A function that may jump, of exact numbers: the same for these and as float32 holds them."""

    def rule(call: Call) -> Value:
        constants = [call.constant(place) for place in range(len(call))]
        _, place = broadcast(constants)
        for item in constants:
            item.check_fixed()
            if item.lo is not item.hi:
                raise Unsupported("it jumps, and a number before it is not exact")
            call.sink.untracked.update(item.sources)
        found = np.asarray(function(*(item.lo for item in constants)))
        rounded = function(*(_rounded(item.lo) for item in constants))
        if not np.array_equal(found, rounded):
            raise Unsupported(_READINGS)
        return Constant(found, found, {}, place)

    return rule


def _rounded(array: Array) -> Array:
    return array.astype(np.float32).astype(np.float64) if array.dtype.kind == "f" else array


def modulo(call: Call) -> Value:
    """The remainder, with the sign of the divisor, or of the dividend for fmod."""
    function = np.fmod if call.integer("fmod", 0) else np.mod
    if not call.constant(1).lo.all():
        raise Unsupported("a divisor is 0")
    return exactly(function)(call)


def _signs(array: Array) -> Array:
    if array.dtype.kind == "u":
        raise Unsupported("a number without a sign")
    return np.asarray(np.sign(array))


JUMPS: Final[Mapping[str, Callable[[Call], Value]]] = {
    "And": exactly(np.logical_and),
    "Ceil": exactly(np.ceil),
    "Equal": equal,
    "Floor": exactly(np.floor),
    "Greater": exactly(np.greater),
    "GreaterOrEqual": exactly(np.greater_equal),
    "IsInf": exactly(np.isinf),
    "IsNaN": exactly(np.isnan),
    "Less": exactly(np.less),
    "LessOrEqual": exactly(np.less_equal),
    "Mod": modulo,
    "Not": exactly(np.logical_not),
    "Or": exactly(np.logical_or),
    "Round": exactly(np.round),
    "Sign": exactly(_signs),
    "Xor": exactly(np.logical_xor),
}
"""functions that jump, of constants"""
