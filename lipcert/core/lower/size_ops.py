"""Sizes: whole numbers exactly, and multiples c·N of the batch size where they stay such.

An entry that grows is c·N for every N ≥ 1. What is computed from it is followed where it is known
for every N to be such a multiple again, or not to depend on N, and refused elsewhere.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import FIXED, Constant, Value, broadcast, check_size
from lipcert.core.program import Place

Array = npt.NDArray[Any]


_MOST: Final = 1 << 22
"""whole numbers that are computed with at once"""


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


def marks(constant: Constant) -> Array:
    """Which entries grow."""
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
    match operation:
        case "Add" | "Sub":
            allowed, grows = ~either, either
            result = a + b if operation == "Add" else a - b
        case "Mul":
            allowed, grows, result = ~both, either, a * b
        case _:
            if (b <= 0).any() or (a < 0).any():
                raise Unsupported("a quotient of numbers that are not positive")
            result = a // b
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
    shape = check_size(tuple(int(item) for item in sizes.lo.reshape(-1)))
    if number.size != 1 or sizes.lo.dtype.kind != "i" or min(shape, default=0) < 0:
        raise Unsupported("its value or its sizes do not fit")
    grown = np.flatnonzero(marks(sizes)).tolist()
    if len(grown) > 1:
        raise Unsupported(FIXED)
    array = np.full(shape, number[0])
    return Constant(array, array, {}, Place(grown[0]) if grown else None)


def numbers_from(call: Call) -> Value:
    """Whole numbers from, to, step."""
    start, stop, step = (call.whole(place)[0] for place in range(3))
    check_size((len(range(start, stop, step)),))
    return _plain(np.arange(start, stop, step, dtype=np.int64))


def equal(call: Call) -> Value:
    """Equality of exact numbers; c·N is not equal to a number below 1."""
    first, second = call.constant(0), call.constant(1)
    shape, place = broadcast((first, second))
    left, right = (np.broadcast_to(marks(item), shape) for item in (first, second))
    a, b = np.broadcast_to(first.lo, shape), np.broadcast_to(second.lo, shape)
    known = ~(left | right) | (left & ~right & (b <= 0)) | (right & ~left & (a <= 0))
    if first.lo is not first.hi or second.lo is not second.hi or not known.all():
        raise Unsupported("it compares with the size of the batch, or numbers that are not exact")
    call.sink.untracked.update([*first.sources, *second.sources])
    flags = np.asarray((a == b) & ~(left | right))
    return Constant(flags, flags, {}, place)
