"""Sizes: whole numbers exactly, and multiples c·N of the batch size where they stay such.

An entry that grows is c·N for every N ≥ 1. What is computed from it is followed where it is known
for every N to be such a multiple again, or not to depend on N, and refused elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import add, floordiv, mul, sub
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.interval import exact
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.layout_ops import normal_axes
from lipcert.core.lower.reals import sum_of_sources
from lipcert.core.lower.values import FIXED, Constant, Value, broadcast, check_size, is_of_batch
from lipcert.core.program import Place

Array = npt.NDArray[Any]


_MOST: Final = 1 << 22
"""whole numbers that are computed with at once"""
ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {"Add": add, "Mul": mul, "Sub": sub}


def _plain(array: Array, grows: Array | None = None) -> Constant:
    return Constant(array, array, grows=grows)


def shape_of(call: Call) -> Value:
    """Shape: the dimension that carries the batch grows with it."""
    value = call.value(0)
    rank = len(value.shape)
    chosen = slice(call.integer("start", 0), call.integer("end", rank))
    grows = np.zeros(rank, dtype=bool)
    if value.place is not None:
        grows[value.place.axis] = True
    return _plain(np.asarray(value.shape, dtype=np.int64)[chosen], grows[chosen])


def size_of(call: Call) -> Value:
    """Size: the number of entries."""
    value = call.value(0)
    count = np.asarray(math.prod(value.shape), dtype=np.int64)
    return _plain(count, np.asarray(value.place is not None))


def joined(call: Call) -> Value:
    """One after another along an axis that is not the batch's."""
    parts = [call.constant(place) for place in range(len(call))]
    (axis,) = normal_axes([call.integer("axis", 0)], len(parts[0].shape))
    places = {part.place for part in parts}
    if len(places) > 1 or any(item is not None and item.axis == axis for item in places):
        raise Unsupported(FIXED)
    check_size((sum(math.prod(part.shape) for part in parts),))
    low = np.concatenate([part.lo for part in parts], axis)
    exact = all(part.lo is part.hi for part in parts)
    high = low if exact else np.concatenate([part.hi for part in parts], axis)
    grows = np.concatenate([marks(part) for part in parts], axis)
    sources = parts[0].sources if len(parts) == 1 else sum_of_sources(*parts)
    return Constant(low, high, sources, parts[0].place, grows)


def marks(constant: Constant) -> Array:
    """Which entries grow with the batch."""
    return np.zeros(constant.shape, dtype=bool) if constant.grows is None else constant.grows


def within(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Python integers as numbers of this type, which must hold them."""
    bounds = np.iinfo(dtype)
    if any(not bounds.min <= item <= bounds.max for item in numbers.reshape(-1)):
        raise Unsupported("a whole number is too large")
    return numbers.astype(dtype)


def whole(operation: str, first: Constant, second: Constant) -> Constant:
    """Arithmetic of integers: c·N times or over a fixed whole number, and (c·N)/(d·N)."""
    if first.lo.dtype != second.lo.dtype or first.lo.dtype.kind not in "iu":
        raise Unsupported("constants of different types are combined")
    shape, place = broadcast((first, second))
    if math.prod(shape) > _MOST:
        raise Unsupported(f"it computes with more than {_MOST} whole numbers")
    a, b = (np.broadcast_to(item.lo, shape).astype(object) for item in (first, second))
    left, right = (np.broadcast_to(marks(item), shape) for item in (first, second))
    both, either = left & right, left | right
    if operation == "Div" and ((b <= 0).any() or (a < 0).any()):
        raise Unsupported("a quotient of numbers that are not positive")
    result = ARITHMETIC.get(operation, floordiv)(a, b)
    allowed, grows = ~both if operation == "Mul" else ~either, either
    if operation == "Div":
        divides = np.asarray(result * b == a, dtype=bool)
        allowed, grows = ~either | (left & divides), left & ~right
    if not np.asarray(allowed, dtype=bool).all():
        raise Unsupported("it computes with the size of the batch")
    return Constant(*2 * (within(np.asarray(result), first.lo.dtype),), {}, place, grows)


def filled(call: Call) -> Value:
    """One number everywhere, for every example if a size grows."""
    sizes = call.constant(0)
    tensor = call.tensor("value")
    number = np.zeros(1) if tensor is None else tensor.values().reshape(-1)
    listed, grows = sizes.sizes()
    shape, place = tuple(listed), None
    if is_of_batch(shape, call.sink.count):
        shape, place = (1, *shape[1:]), Place(0)
    check_size(shape)
    if number.size != 1 or min(shape, default=0) < 0:
        raise Unsupported("its value or its sizes do not fit")
    grown = [axis for axis, is_grown in enumerate(grows) if is_grown]
    if len(grown) > 1:
        raise Unsupported(FIXED)
    array = np.full(shape, number[0])
    return Constant(array, array, {}, Place(grown[0]) if grown else place)


def numbers_from(call: Call) -> Value:
    """Numbers from, to, step: whole ones, or reals start + i·step."""
    if not call.constant(0).is_float:
        start, stop, step = (call.whole(place)[0] for place in range(3))
        check_size((len(range(start, stop, step)),))
        return _plain(np.arange(start, stop, step, dtype=np.int64))
    first, last, gap = (call.number(place) for place in range(3))
    if not all(map(math.isfinite, (first, last, gap))) or gap == 0.0:
        raise Unsupported("its numbers are not finite, or its step is 0")
    count = max(math.ceil((Fraction(last) - Fraction(first)) / Fraction(gap)), 0)
    if count != max(math.ceil((last - first) / gap), 0):
        raise Unsupported("rounding decides how many numbers there are")
    check_size((count,))
    known = exact(np.arange(count, dtype=np.float64)) * exact(np.full(count, gap)) + exact(
        np.full(count, first)
    )
    return Constant(known.lo, known.hi)


def one_hot(call: Call) -> Value:
    """One of two numbers at the place that an index names, the other one elsewhere."""
    places, depth, values = call.constant(0), int(call.number(1)), call.constant(2)
    axis = call.integer("axis", -1)
    values.check_fixed()
    wanted = np.asarray(places.lo)
    if places.place or values.place or values.shape != (2,) or depth < 1:
        raise Unsupported("its depth or its values do not fit")
    places.check_fixed()
    call.sink.untracked.update(places.sources)
    check_size((*places.shape, depth))
    if places.lo is not places.hi or not np.array_equal(wanted, np.floor(wanted)):
        raise Unsupported("an index is not a whole number")
    wanted = np.where(wanted < 0, wanted + depth, wanted)
    hot = np.moveaxis(wanted[..., None] == np.arange(depth), -1, axis)
    return values.gathered(hot.astype(np.int64), None)


def identity_matrix(call: Call) -> Value:
    """Ones on a diagonal, of the shape of a constant."""
    like, code = call.constant(0), call.integer("dtype", 0)
    real = np.dtype(np.float64)
    kinds = {0: like.lo.dtype, 1: real, 10: real, 11: real}
    kinds |= {6: np.dtype(np.int32), 7: np.dtype(np.int64), 9: np.dtype(np.bool_)}
    if len(like.shape) != 2 or like.place is not None or code not in kinds:
        raise Unsupported("its shape or its type is not understood")
    rows, columns = check_size(like.shape)
    array = np.eye(rows, columns, k=call.integer("k", 0)).astype(kinds[code])
    return _plain(array)


def equal(call: Call) -> Value:
    """Equality of exact numbers; c·N for c > 0 is not equal to a number below 1."""
    first, second = call.constant(0), call.constant(1)
    shape, place = broadcast((first, second))
    left, right = (np.broadcast_to(marks(item), shape) for item in (first, second))
    a, b = np.broadcast_to(first.lo, shape), np.broadcast_to(second.lo, shape)
    known = ~(left | right)
    known |= (left & ~right & (a > 0) & (b <= 0)) | (right & ~left & (b > 0) & (a <= 0))
    if first.lo is not first.hi or second.lo is not second.hi or not known.all():
        raise Unsupported("it compares with the size of the batch, or numbers that are not exact")
    call.sink.untracked.update([*first.sources, *second.sources])
    flags = np.asarray((a == b) & ~(left | right))
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
            raise Unsupported("it jumps between a number and its float32, so it has two readings")
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
