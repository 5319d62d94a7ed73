"""Move entries: index tables and arrangements."""

import math
from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Arrange, Array, Constant, Data, Value, check_size
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
        return Constant.of(np.zeros(index.shape), place)
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
