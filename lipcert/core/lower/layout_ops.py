"""Lower operators that only rearrange entries, for constants and data alike.

Each rule computes which entry of the input every entry of the output is, at N = 1, and the place
of the batch in the output.
"""

import math
from collections.abc import Sequence

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import MixingError, ReadsAcrossError, Unsupported
from lipcert.core.lower.moves import arrange, permute
from lipcert.core.lower.values import FIXED, Value
from lipcert.core.program import Place, Shape


def normal_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the axes counted from the front, in order; refuse repeated ones."""
    if any(not -rank <= axis < rank for axis in axes):
        raise Unsupported("an axis is out of range")
    result = tuple(sorted(axis % rank for axis in axes))
    if len(set(result)) < len(result):
        raise Unsupported("an axis is named twice")
    return result


def check_apart(value: Value, axes: Sequence[int]) -> None:
    """Refuse an op that reads across these axes if the batch lies on one of them."""
    if value.place is not None and value.place.axis in axes:
        raise ReadsAcrossError(f"it reads across the batch axis {value.place.axis}")


def check_kept(value: Value, axes: Sequence[int]) -> None:
    """Refuse an op that moves entries along these axes if the batch lies on one of them."""
    if value.place is not None and value.place.axis in axes:
        raise MixingError(f"it moves entries along the batch axis {value.place.axis}")


def reshaped(value: Value, shape: Shape, grows: Sequence[bool]) -> Place | None:
    """Return the place of the batch after a reshape to `shape`, whose marked dimensions grow.

    Proof: the row-major order stays, and so does P. Behind the leading dimensions, whose product B
    does not depend on N, the growing one is (P/B)·N·after, if B divides P and P/B divides it.
    """
    if math.prod(shape) != math.prod(value.shape):
        raise Unsupported("a reshape changes the number of entries")
    grown = [axis for axis, is_grown in enumerate(grows) if is_grown]
    if value.place is None and not grown:
        return None
    if value.place is None or len(grown) != 1:
        raise Unsupported(FIXED)
    axis = grown[0]
    prefix = math.prod(value.shape[: value.place.axis]) * value.place.before
    before, left = divmod(prefix, math.prod(shape[:axis]))
    if left or shape[axis] % before:
        raise Unsupported("a reshape spreads the batch over several axes")
    return Place(axis, before)


def same_order(call: Call, value: Value, shape: Shape, grows: Sequence[bool]) -> Value:
    """Reshape a value, keeping the row-major order of its entries."""
    place = reshaped(value, shape, grows)
    return arrange(call, value, lambda entries: entries.reshape(shape), place)


def _batch_axis(value: Value) -> int:
    return -1 if value.place is None else value.place.axis


def reshape(call: Call) -> Value:
    """Lower Reshape: 0 copies a dimension, −1 takes the rest.

    A file with a fixed batch may write its size: it belongs to the axis that for such a batch is
    before·N·after as in `reshaped`, and no other axis fits.
    """
    value, target = call.value(0), call.constant(1)
    sizes, grows = target.sizes()
    if target.lo.ndim != 1 or min(sizes, default=0) < -1:
        raise Unsupported("the shape is not a list of sizes")
    if call.integer("allowzero", 0) == 0:
        for axis, size in enumerate(sizes):
            if size == 0:
                sizes[axis], grows[axis] = value.shape[axis], axis == _batch_axis(value)
    if sizes.count(-1) > 1:
        raise Unsupported("two sizes are unknown")
    total, count = math.prod(value.shape), call.sink.count
    try:
        if -1 in sizes and value.place is not None and not any(grows):
            grows[sizes.index(-1)] = True
        return same_order(call, value, _completed(sizes, total), grows)
    except Unsupported:
        if count is None or value.place is None:
            raise
        from lipcert.core.lower.fixed_batch import sizes_of_one  # noqa: PLC0415  for these only

        shape = sizes_of_one(value, _completed(sizes, total * count), count)
        if shape is None:
            raise
        return same_order(call, value, *shape)


def _completed(sizes: Sequence[int], total: int) -> Shape:
    """Return the sizes, with −1 replaced by the remaining number of entries."""
    rest = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and (rest == 0 or total % rest):
        raise Unsupported("the shape does not fit")
    return tuple(total // rest if size == -1 else size for size in sizes)


def flatten(call: Call) -> Value:
    """Lower Flatten: merge all axes before one, and all axes from it on."""
    value = call.value(0)
    rank = len(value.shape)
    axis = call.integer("axis", 1)
    if not -rank <= axis <= rank:
        raise Unsupported("the axis is out of range")
    axis = axis + rank if axis < 0 else axis
    shape = (math.prod(value.shape[:axis]), math.prod(value.shape[axis:]))
    first = 0 <= _batch_axis(value) < axis
    return same_order(call, value, shape, (first, value.place is not None and not first))


def squeeze(call: Call) -> Value:
    """Lower Squeeze: drop axes of size 1; all of them if none is named, as in an empty list."""
    value = call.value(0)
    own, axes = _batch_axis(value), call.axes(1, 13)
    if not axes:
        if own >= 0 and value.shape[own] == 1:
            raise Unsupported("it drops the batch axis of a single example")
        axes = [axis for axis, size in enumerate(value.shape) if size == 1]
    gone = normal_axes(axes, len(value.shape))
    if own in gone or any(value.shape[axis] != 1 for axis in gone):
        raise Unsupported(FIXED)
    kept = [axis for axis in range(len(value.shape)) if axis not in gone]
    shape = tuple(value.shape[axis] for axis in kept)
    return same_order(call, value, shape, [axis == own for axis in kept])


def unsqueeze(call: Call) -> Value:
    """Lower Unsqueeze: insert axes of size 1, counted in the result."""
    value, given = call.value(0), call.axes(1, 13)
    if given is None:
        raise Unsupported("its axes are missing")
    new = normal_axes(given, len(value.shape) + len(given))
    own = iter(range(len(value.shape)))
    axes = [-2 if axis in new else next(own) for axis in range(len(value.shape) + len(new))]
    shape = tuple(1 if axis == -2 else value.shape[axis] for axis in axes)
    return same_order(call, value, shape, [axis == _batch_axis(value) for axis in axes])


def transpose(call: Call) -> Value:
    """Lower Transpose: reorder the axes, which are reversed by default."""
    value = call.value(0)
    order = call.integers("perm")
    return permute(call, value, order or list(range(len(value.shape)))[::-1])
