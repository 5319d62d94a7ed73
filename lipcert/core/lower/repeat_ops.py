"""Lower operators that repeat entries along axes, for constants and data alike."""

import math
from collections.abc import Sequence

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import MixingError, Unsupported
from lipcert.core.lower.moves import arrange
from lipcert.core.lower.values import FIXED, Constant, Data, Value, check_size, is_of_batch
from lipcert.core.program import Place, Shape


def expand(call: Call) -> Value:
    """Lower Expand: broadcast to a shape; a constant may be repeated for every example.

    A size that does not grow leaves the batch axis unchanged.
    """
    value, target, count = call.value(0), call.constant(1), call.sink.count
    listed, grows = target.sizes()
    sizes = tuple(listed)
    if min(sizes, default=1) < 1:
        raise Unsupported("the shape is not a list of sizes")
    if value.place is not None and count is not None:
        sizes = _without_batch(value, value.place, sizes, count)
    if isinstance(value, Constant) and value.place is None and is_of_batch(sizes, count):
        own = len(value.shape) - len(sizes)
        if own < 0 or value.shape[own] == 1:
            shape = check_size(np.broadcast_shapes(value.shape, (1, *sizes[1:])))
            return _repeated(call, value, shape, Place(0))
    shape = check_size(np.broadcast_shapes(value.shape, sizes))
    before, first = len(shape) - len(value.shape), len(shape) - len(sizes)
    grown = [axis + first for axis, is_grown in enumerate(grows) if is_grown]
    place = value.place and Place(value.place.axis + before, value.place.before)
    if not grown:
        if place is not None and place.axis >= first and sizes[place.axis - first] != 1:
            raise Unsupported(FIXED)
    elif place and grown == [place.axis] and shape[place.axis] == sizes[place.axis - first]:
        if value.shape[place.axis - before] != shape[place.axis]:
            raise Unsupported(FIXED)
    else:
        place = _for_every_example(value, grown, grown[0] - before)
    return _repeated(call, value, shape, place)


def _without_batch(value: Value, place: Place, sizes: Shape, count: int) -> Shape:
    """Return the sizes for one example, if that of the batch axis is written for `count`."""
    axis, size = len(sizes) + place.axis - len(value.shape), value.shape[place.axis]
    if axis < 0 or sizes[axis] != size * count:
        return sizes
    return (*sizes[:axis], size, *sizes[axis + 1 :])


def _repeated(call: Call, value: Value, shape: Shape, place: Place | None) -> Value:
    """Repeat along axes of size 1, and new axes in front, to a shape of limited size."""
    copies = math.prod(shape) // max(math.prod(value.shape), 1)
    return arrange(call, value, lambda entries: np.broadcast_to(entries, shape), place, copies)


def _for_every_example(value: Value, grown: Sequence[int], own: int) -> Place:
    """Return the batch's place in a constant that is now repeated for all examples.

    Proof: along the growing axis it had the size 1, so all its entries there are equal, and any
    split of that axis into before·N·after gives every example the same.
    """
    if isinstance(value, Data) or value.place is not None or len(grown) != 1:
        raise Unsupported("data, or several axes, are repeated as often as there are examples")
    if own >= 0 and value.shape[own] != 1:
        raise Unsupported(FIXED)
    return Place(int(grown[0]))


def tile(call: Call) -> Value:
    """Lower Tile: repeat the whole tensor along its axes."""
    value, times = call.value(0), call.constant(1)
    counts, grows = times.sizes()
    if len(counts) != len(value.shape) or min(counts, default=1) < 1:
        raise Unsupported("the numbers of repetitions do not fit")
    check_size(tuple(a * b for a, b in zip(counts, value.shape, strict=True)))
    place = value.place
    grown = [axis for axis, is_grown in enumerate(grows) if is_grown]
    if grown and place is None and len(grown) == 1 and isinstance(value, Constant):
        place = Place(grown[0])  # all of it, for every example
    elif grown:
        raise Unsupported(FIXED)
    elif place is not None and counts[place.axis] != 1:
        raise MixingError("it repeats the batch axis")
    return arrange(call, value, lambda entries: np.tile(entries, counts), place, math.prod(counts))
