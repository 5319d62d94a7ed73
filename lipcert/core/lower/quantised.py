"""Lower quantised numbers that do not depend on the input: (q − z)·s, q a whole number in the file.

They are constants of the architecture: training does not change q, and training of a scale s, which
would round q anew, is not followed.
"""

import numpy as np

from lipcert.core.interval import Interval, exact
from lipcert.core.lower.call import Call
from lipcert.core.lower.casts import as_held
from lipcert.core.lower.entrywise import interval
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.operators import REALS
from lipcert.core.lower.values import FIXED, Array, Constant, Value

_EXACT = 1 << 29
"""A whole number below this, times a float32, is exact in float64."""


def dequantised(call: Call) -> Value:
    """Lower DequantizeLinear of constants, with one scale, one for each place of an axis, or one
    for each block along an axis."""
    numbers, scale = call.constant(0), call.constant(1)
    axis, block = call.integer("axis", 1), call.integer("block_size", 0)
    if call.integer("output_dtype", 1) not in {0, *REALS} or not scale.is_float:
        raise Unsupported("its scale or its output are not real numbers")
    shape = numbers.shape
    if numbers.place is not None or scale.place is not None:
        raise Unsupported(FIXED)
    known = interval(scale)
    low, high = (_spread(end, shape, axis, block) for end in (known.lo, known.hi))
    whole = _whole(numbers)
    if call.has(2):
        zero = call.constant(2)
        fits = zero.shape == scale.shape or zero.lo.size == scale.lo.size == 1
        if zero.place is not None or not fits or zero.lo.dtype != numbers.lo.dtype:
            raise Unsupported("its zero point is not of the shape and type that it should be")
        whole = whole - _spread(_whole(zero), shape, axis, block)
    call.sink.untracked.update(scale.sources)
    real = whole.astype(np.float64)
    is_single = known.lo is known.hi and bool((known.lo.astype(np.float32) == known.lo).all())
    if is_single and (np.abs(whole) <= _EXACT).all():
        result = as_held(call.sink, exact(real * low))
    else:
        result = exact(real) * Interval(low, high)
    return Constant(result.lo, result.hi)


def _whole(constant: Constant) -> Array:
    """Return the numbers as int64, in which the difference of two of them does not overflow."""
    constant.check_fixed()
    kind = constant.lo.dtype
    if constant.lo is not constant.hi or kind.kind not in "iu" or kind.itemsize > 4:
        raise Unsupported("it holds no quantised numbers")
    return constant.lo.astype(np.int64)


def _spread(numbers: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """Broadcast one number, a vector along an axis, or one number per block along an axis."""
    rank = len(shape)
    if len(numbers.shape) <= 1 and numbers.size == 1:
        return np.broadcast_to(numbers.reshape(()), shape)
    if not -rank <= axis < rank or block < 0:
        raise Unsupported("its axis or its blocks are not those of its input")
    axis %= rank
    if block:
        blocks = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
        if numbers.shape != blocks:
            raise Unsupported("its scales do not fit its blocks")
        return np.repeat(numbers, block, axis).take(range(shape[axis]), axis)
    if numbers.shape != (shape[axis],):
        raise Unsupported("its scales do not fit its axis")
    return np.broadcast_to(numbers.reshape(-1, *(1,) * (rank - axis - 1)), shape)
