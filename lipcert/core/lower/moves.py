"""Move entries: index tables, arrangements, and broadcasting."""

import math
from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import MixingError, Unsupported
from lipcert.core.lower.values import FIXED, Arrange, Array, Constant, Data, Value, check_size
from lipcert.core.program import IndexArray, Move, Place, Shape

_TABLES: WeakValueDictionary[int, IndexArray] = WeakValueDictionary()


def indices(shape: Shape) -> IndexArray:
    """Return the flat index of every entry of a tensor of this shape.

    All tensors of one size share one read-only table as long as it is used, and views of it take no
    memory.
    """
    size = math.prod(check_size(shape))
    table = _TABLES.get(size)
    if table is None:
        spend(size)
        table = np.arange(size, dtype=np.int64)
        table.setflags(write=False)
        _TABLES[size] = table
    return table.reshape(shape)


def arrange(call: Call, value: Value, act: Arrange, place: Place | None, copies: int = 1) -> Value:
    """Return the entries as `act` arranges them, none of them more than `copies` times.

    If no entry of the data is left, the result does not depend on the data.
    """
    if isinstance(value, Constant):
        return value.rearranged(act, place, copies)
    index = act(indices(value.shape))
    if not index.size:
        return Constant(*2 * (np.zeros(index.shape),), {}, place)
    return moved(call, value, index, place)


def permute(call: Call, value: Value, order: Sequence[int]) -> Value:
    """Transpose: axis k of the result is axis order[k], and the batch axis moves with it."""
    if sorted(order) != list(range(len(value.shape))):
        raise Unsupported("the axes are not a permutation")
    place = value.place and Place(list(order).index(value.place.axis), value.place.before)
    return arrange(call, value, lambda entries: entries.transpose(order), place)


def move(call: Call, value: Value, index: IndexArray, place: Place | None) -> Value:
    """Return the value whose entry k is entry index[k] of the given one, or 0 if that is −1."""
    if isinstance(value, Constant):
        return gathered(value, index, place)
    return moved(call, value, index, place)


def moved(call: Call, value: Data, index: IndexArray, place: Place | None) -> Data:
    """Return `move` of data; if nothing changes, the value itself."""
    if index.shape == value.shape and np.array_equal(index, indices(value.shape)):
        return Data(value.name, value.shape, place)
    return call.step(Move(index), value, shape=index.shape, place=place)


def gathered(value: Constant, index: IndexArray, place: Place | None) -> Constant:
    """Return `move` of a constant: entry k is entry index[k], or 0 if that is −1."""

    def taken(array: Array) -> Array:
        return np.append(array.reshape(-1), np.zeros(1, array.dtype))[index]

    read = index[index >= 0]
    return value.rearranged(taken, place, int(np.bincount(read).max()) if read.size else 0)


def names_own(value: Value, axis: int, places: Constant) -> bool:
    """Whether all places along the batch axis lie in the part of their own example.

    Proof: with S entries for each example side by side, those of example i begin at S·i.
    """
    if value.place != Place(axis) or places.place is None or places.varies is None:
        return False
    size, first = value.shape[axis], places.lo
    return bool((places.varies == size).all() and (first >= 0).all() and (first < size).all())


def broadcast(values: Sequence[Value]) -> tuple[Shape, Place | None]:
    """Return the common shape of tensors combined entry by entry, and the batch's place in it.

    Proof: all that depend on N have its dimension before·N·after on the same axis of the result,
    and all others are repeated along that axis, so an entry of example i meets those of example i.
    """
    shape = check_size(np.broadcast_shapes(*(value.shape for value in values)))
    found = {
        (value.place.axis + len(shape) - len(value.shape), value.place.before, _length(value))
        for value in values
        if value.place is not None
    }
    if len(found) > 1:
        raise MixingError("its inputs carry the batch on different axes, or in different ways")
    if not found:
        return shape, None
    axis, before, _ = next(iter(found))
    for value in values:
        own = axis - len(shape) + len(value.shape)
        if value.place is None and own >= 0 and value.shape[own] != 1:
            raise Unsupported(FIXED)
    return shape, Place(axis, before)


def _length(value: Value) -> int:
    if value.place is None:
        raise Unsupported("it is used in a way that is not understood")
    return value.shape[value.place.axis]
