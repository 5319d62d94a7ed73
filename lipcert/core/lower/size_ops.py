"""Lower operators on sizes of tensors: whole numbers, or multiples c·N of the batch size.

An entry that grows is c·N for every N ≥ 1 (`TIMES`). A result computed from it is accepted only if,
for every N, it is again such a multiple or does not depend on N.
"""

import math

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.constant_node import sum_of_sources
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.layout_ops import normal_axes
from lipcert.core.lower.values import FIXED, SAME, TIMES, Constant, Value, check_size


def shape_of(call: Call) -> Value:
    """Lower Shape: the dimension that carries the batch grows with it."""
    value = call.value(0)
    rank = len(value.shape)
    chosen = slice(call.integer("start", 0), call.integer("end", rank))
    varies = np.full(rank, SAME, dtype=np.int64)
    if value.place is not None:
        varies[value.place.axis] = TIMES
    return Constant.of(np.asarray(value.shape, np.int64)[chosen], varies=varies[chosen])


def size_of(call: Call) -> Value:
    """Lower Size: the number of entries."""
    value = call.value(0)
    grows = np.asarray(SAME if value.place is None else TIMES, np.int64)
    return Constant.of(np.asarray(math.prod(value.shape), np.int64), varies=grows)


def joined(call: Call) -> Value:
    """Lower Concat of constants along an axis that is not the batch axis."""
    parts = [call.constant(place) for place in range(len(call))]
    (axis,) = normal_axes([call.integer("axis", 0)], len(parts[0].shape))
    places = {part.place for part in parts}
    if len(places) > 1 or any(item is not None and item.axis == axis for item in places):
        raise Unsupported(FIXED)
    check_size((sum(math.prod(part.shape) for part in parts),))
    if len(parts) == 1:
        return parts[0]
    low = np.concatenate([part.lo for part in parts], axis)
    exact = all(part.lo is part.hi for part in parts)
    high = low if exact else np.concatenate([part.hi for part in parts], axis)
    varies = np.concatenate([part.marks for part in parts], axis)
    sources = sum_of_sources(*parts)
    if not sources:
        return Constant(low, high, {}, parts[0].place, varies)
    from lipcert.core.lower.constant_ops import beside  # noqa: PLC0415  for such alone

    found = Constant(low, high, sources, parts[0].place, varies)
    return beside(found, parts, axis, call.sink.model.initializers)
