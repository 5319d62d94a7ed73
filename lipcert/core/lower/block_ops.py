"""Lower operators that move blocks of entries, or select or replace entries at given places."""

import math
from dataclasses import replace

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.layout_ops import check_kept, normal_axes, same_order
from lipcert.core.lower.moves import arrange, indices, move, permute
from lipcert.core.lower.selection_ops import CHOSEN, counted, names_own, picked, picked_along
from lipcert.core.lower.spelling import apply, whole
from lipcert.core.lower.values import FIXED, Array, Constant, Data, Value, check_size, only_data
from lipcert.core.program import IndexArray, Place, Shape


def _image(call: Call) -> tuple[Value, Shape, int]:
    """Return the image (one per example), its shape, and the size of a block."""
    value, size = call.value(0), call.integer("blocksize", 0)
    if len(value.shape) != 4 or size < 1 or (value.place is not None and value.place.axis != 0):
        raise Unsupported("the batch does not lie on axis 0 of images, or the block has no size")
    return value, value.shape, size


def depth_to_space(call: Call) -> Value:
    """Lower DepthToSpace: blocks of channels become blocks of positions."""
    value, (count, channels, height, width), size = _image(call)
    mode, depth = call.text("mode", "DCR"), channels // size**2
    if mode == "DCR":
        split, order = (count, size, size, depth, height, width), (0, 3, 4, 1, 5, 2)
    elif mode == "CRD":
        split, order = (count, depth, size, size, height, width), (0, 1, 4, 2, 5, 3)
    else:
        raise Unsupported("its mode is not known")
    return _regrouped(call, value, split, order, (count, depth, height * size, width * size))


def space_to_depth(call: Call) -> Value:
    """Lower SpaceToDepth: blocks of positions become blocks of channels."""
    value, (count, channels, height, width), size = _image(call)
    rows, columns = height // size, width // size
    split = (count, channels, rows, size, columns, size)
    shape = (count, channels * size**2, rows, columns)
    return _regrouped(call, value, split, (0, 3, 5, 1, 2, 4), shape)


def _regrouped(call: Call, value: Value, split: Shape, order: Shape, shape: Shape) -> Value:
    def blocks(entries: Array) -> Array:
        return entries.reshape(split).transpose(order).reshape(shape)

    return arrange(call, value, blocks, value.place)


def triangle(call: Call) -> Value:
    """Lower Trilu: write zeros below or above a diagonal of the last two axes."""
    value, offset = call.value(0), call.whole(1)[0] if call.has(1) else 0
    rank = len(value.shape)
    check_kept(value, normal_axes((-2, -1), rank))
    keep = np.triu if call.integer("upper", 1) else np.tril
    kept = keep(np.ones(value.shape[-2:], dtype=bool), offset)
    return move(call, value, np.where(kept, indices(value.shape), -1), value.place)


def _along(value: Value, places: Constant, axis: int) -> IndexArray:
    """Return the flat index of the entry at each place along an axis."""
    where = list(np.indices(check_size(places.shape), sparse=True))
    where[axis] = counted(places, value.shape[axis])
    return indices(value.shape)[tuple(where)]


def gather_elements(call: Call) -> Value:
    """Lower GatherElements: entries at places along one axis.

    The places may depend on the data. If the tensor holds one number everywhere, any places do.
    """
    value, chosen = call.value(0), call.value(1)
    (axis,) = normal_axes([call.integer("axis", 0)], len(value.shape))
    if isinstance(value, Constant) and isinstance(chosen, Data):
        if value.sources or value.uniform() is None:
            raise Unsupported(CHOSEN)
        same = np.broadcast_to(value.lo.flat[0], check_size(chosen.shape))
        return Constant.of(same, chosen.place)
    if isinstance(chosen, Data):
        here, there = list(value.shape), list(chosen.shape)
        if here[:axis] + here[axis + 1 :] != there[:axis] + there[axis + 1 :]:
            raise Unsupported(CHOSEN)
        wide = only_data(apply(call, "Unsqueeze", value, whole(axis)))
        given = only_data(apply(call, "Unsqueeze", chosen, whole(axis + 1)))
        shown = picked_along(call, wide, given, axis + 1)
        return apply(call, "Squeeze", shown, whole(axis + 1))
    places = call.constant(1)
    check_kept(value, (axis,))
    if len(places.shape) != len(value.shape):
        raise Unsupported("its indices have another rank")
    own = -1 if value.place is None else value.place.axis
    if places.place != value.place or (own >= 0 and places.shape[own] != value.shape[own]):
        raise Unsupported(FIXED)
    return move(call, value, _along(value, places, axis), value.place)


def gather_nd(call: Call) -> Value:
    """Lower GatherND: entries, or slices, at constant places, which may differ along leading axes.

    Proof if the first number of every place is that of its example, as in x[i, k]: example i reads
    from row i, which is its own, and the result lies where its place lay. Such a k may depend on
    the data.
    """
    value, chosen, leading = call.value(0), call.value(1), call.integer("batch_dims", 0)
    if isinstance(chosen, Data):
        is_own = leading == int(chosen.kind != "pair") and chosen.shape[-1] == 2 - leading
        if not is_own or value.shape[:1] != (1,) or {value.place, chosen.place} != {Place(0)}:
            raise Unsupported(CHOSEN)
        own = replace(chosen, shape=(*chosen.shape[:-1], 1))
        grows = [axis == 0 for axis in range(len(own.shape) - 1)]
        return picked(
            call, only_data(value), only_data(same_order(call, own, own.shape[:-1], grows))
        )
    constant = call.constant(1)
    is_own = leading == 0 and _names_own(value, constant)
    places = replace(constant, varies=None) if is_own else constant
    depth, shape = places.shape[-1], value.shape
    if leading < 0 or leading + depth > len(shape) or places.shape[:leading] != shape[:leading]:
        raise Unsupported("its indices do not fit")
    place = value.place
    if not is_own:
        check_kept(value, range(leading, leading + depth))
        if constant.place != (place if place is not None and place.axis < leading else None):
            raise Unsupported(FIXED)
    check_size((*places.shape[:-1], *shape[leading + depth :]))
    where = counted(places, np.asarray(shape[leading : leading + depth], dtype=np.int64))
    outer = np.indices(shape[:leading], sparse=True)
    inner = [item.reshape(*item.shape, *(1,) * (len(places.shape) - 1 - leading)) for item in outer]
    index = indices(shape)[(*inner, *np.moveaxis(where, -1, 0))]
    if is_own:
        place = constant.place
    elif place is not None and place.axis >= leading:
        place = Place(place.axis - leading - depth + len(places.shape) - 1, place.before)
    return move(call, value, index, place)


def _names_own(value: Value, places: Constant) -> bool:
    """Whether the first number of every place is that of a row of its own example."""
    if places.place is None or places.varies is None or places.place.axis == places.lo.ndim - 1:
        return False
    first = replace(
        places, lo=places.lo[..., 0], hi=places.lo[..., 0], varies=places.varies[..., 0]
    )
    return names_own(value, 0, first) and not places.varies[..., 1:].any()


def scatter_elements(call: Call) -> Value:
    """Lower ScatterElements: replace the entries at constant places along one axis."""
    value, places, updates = call.value(0), call.constant(1), call.value(2)
    (axis,) = normal_axes([call.integer("axis", 0)], len(value.shape))
    check_kept(value, (axis,))
    own = -1 if value.place is None else value.place.axis
    if not value.place == places.place == updates.place or places.shape != updates.shape:
        raise Unsupported(FIXED)
    if own >= 0 and places.shape[own] != value.shape[own]:
        raise Unsupported(FIXED)
    return _replaced(call, value, updates, _along(value, places, axis))


def scatter_nd(call: Call) -> Value:
    """Lower ScatterND: replace entries or slices at constant places, or in the example's rows."""
    value, constant, updates = call.value(0), call.constant(1), call.value(2)
    is_own = _names_own(value, constant)
    places = replace(constant, varies=None) if is_own else constant
    expected = constant.place
    if not is_own and value.place is not None:
        check_kept(value, range(places.shape[-1]))
        axis = value.place.axis - places.shape[-1] + len(places.shape) - 1
        expected = Place(axis, value.place.before)
    if (constant.place is not None and not is_own) or updates.place != expected:
        raise Unsupported(FIXED)
    sizes = np.asarray(value.shape[: places.shape[-1]], dtype=np.int64)
    where = indices(value.shape)[tuple(np.moveaxis(counted(places, sizes), -1, 0))]
    return _replaced(call, value, updates, where)


def _replaced(call: Call, value: Value, updates: Value, where: IndexArray) -> Value:
    """Return the value with its entries at these flat indices replaced by the updates.

    Proof that examples stay apart: each is one row of both, and the rows are put side by side.
    """
    if call.text("reduction", "none") != "none" or where.shape != updates.shape:
        raise Unsupported("its updates are combined with the value, or do not fit")
    if np.bincount(where.reshape(-1)).max(initial=0) > 1:
        raise Unsupported("it writes twice to a place")
    (row, index), (more, others) = (_row_of_example(call, item) for item in (value, updates))
    index[np.unravel_index(where, value.shape)] = index.size + others
    return move(call, apply(call, "Concat", row, more, axis=1), index, value.place)


def _row_of_example(call: Call, value: Value) -> tuple[Value, IndexArray]:
    """Return the entries of an example as a row [1, entries], and the place of each in it."""
    rank, placed = len(value.shape), value.place is not None
    axis = 0 if value.place is None else value.place.axis
    order = [axis, *(other for other in range(rank) if other != axis)]
    turned = permute(call, value, order)
    row = same_order(call, turned, (1, math.prod(value.shape)), [placed, False])
    return row, indices(turned.shape).transpose(np.argsort(order)).copy()
