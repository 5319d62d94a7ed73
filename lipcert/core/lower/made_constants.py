"""Lower nodes that make constants from sizes and numbers."""

import math
from fractions import Fraction

import numpy as np

from lipcert.core.interval import exact
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.moves import gathered
from lipcert.core.lower.values import FIXED, VARIES, Constant, Value, check_size, is_of_batch
from lipcert.core.program import Place

_EXACT = 1 << 24
"""Up to this number, float32 represents all whole numbers."""


def filled(call: Call) -> Value:
    """Lower ConstantOfShape: one number everywhere, for every example if a size grows."""
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
    return Constant.of(np.full(shape, number[0]), Place(grown[0]) if grown else place)


def numbers_from(call: Call) -> Value:
    """Lower Range: whole numbers, or reals start + i·step.

    From 0 to N in steps of 1, they are the numbers i of the examples.
    """
    if not call.constant(0).is_float:
        kind = call.constant(0).lo.dtype
        (stop,), (grows,) = call.constant(1).sizes()
        start, step = call.whole(0)[0], call.whole(2)[0]
        if grows:
            if (start, stop, step) != (0, 1, 1):
                raise Unsupported(VARIES)
            return Constant.of(np.zeros(1, kind), Place(0), np.ones(1, np.int64))
        check_size((len(range(start, stop, step)),))
        return Constant.of(np.arange(start, stop, step, dtype=kind))
    first, last, gap = (call.number(place) for place in range(3))
    if not all(map(math.isfinite, (first, last, gap))) or gap == 0.0:
        raise Unsupported("its numbers are not finite, or its step is 0")
    count = max(math.ceil((Fraction(last) - Fraction(first)) / Fraction(gap)), 0)
    if count != max(math.ceil((last - first) / gap), 0):
        raise Unsupported("rounding decides how many numbers there are")
    check_size((count,))
    if first.is_integer() and gap.is_integer() and abs(first) + abs(gap) * count <= _EXACT:
        return Constant.of(first + gap * np.arange(count, dtype=np.float64))
    steps = exact(np.arange(count, dtype=np.float64)) * exact(np.full(count, gap))
    known = steps + exact(np.full(count, first))
    return Constant(known.lo, known.hi)


def one_hot(call: Call) -> Value:
    """Lower OneHot of constants: one number at the place that an index names, another elsewhere."""
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
    return gathered(values, hot.astype(np.int64), None)


def identity_matrix(call: Call) -> Value:
    """Lower EyeLike: ones on a diagonal, in the shape of a constant."""
    like, code = call.constant(0), call.integer("dtype", 0)
    real = np.dtype(np.float64)
    kinds = {0: like.lo.dtype, 1: real, 10: real, 11: real}
    kinds |= {6: np.dtype(np.int32), 7: np.dtype(np.int64), 9: np.dtype(np.bool_)}
    if len(like.shape) != 2 or like.place is not None or code not in kinds:
        raise Unsupported("its shape or its type is not understood")
    rows, columns = check_size(like.shape)
    return Constant.of(np.eye(rows, columns, k=call.integer("k", 0)).astype(kinds[code]))
