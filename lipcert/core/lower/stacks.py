"""Lower products and convolutions of a stack with constants as convolutions of one image."""

import math
from dataclasses import astuple, replace

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.layout_ops import same_order
from lipcert.core.lower.moves import indices, moved, permute
from lipcert.core.lower.spelling import apply
from lipcert.core.lower.values import FIXED, Constant, Data, Value, only_data
from lipcert.core.program import Place, Shape
from lipcert.core.window_kinds import Conv, Window


def stacked(call: Call, value: Data, weight: Constant, *, left: bool) -> Value:
    """Return W[h] @ x[h] (left) or x[h] @ W[h] for every position h of the stack.

    Proof: with the positions h as groups, the entries that are summed over are the channels of
    group h, and all others are pixels; both are the same block diagonal map of the same numbers.
    """
    value, place = _expanded(call, value, weight)
    rank, shape = len(value.shape), value.shape
    turned = weight if left else weight.rearranged(lambda own: own.swapaxes(-1, -2), None)
    outputs, inputs = turned.shape[-2:]
    summed = rank - 2 if left else rank - 1
    stack = [1] * (rank - len(weight.shape)) + list(weight.shape[:-2])
    groups = [axis for axis, size in enumerate(stack) if size > 1]
    own = rank if place is None else place.axis
    if shape[summed] != inputs or own in [*groups, summed]:
        raise Unsupported("the sizes of a product do not fit, or it reads across the batch")
    parts = [] if place is None else [place.before, 1, shape[own] // place.before]
    split = (*shape[:own], *parts, *shape[own + 1 :])
    front = [own + 1] if parts else []
    groups, (summed,) = ([axis + 2 * (axis > own) for axis in axes] for axes in (groups, [summed]))
    free = [axis for axis in range(len(split)) if axis not in [*groups, *front, summed]]
    order = [*front, *groups, summed, *free]
    wide = same_order(call, value, split, [axis in front for axis in range(len(split))])
    count, pixels = math.prod(stack), math.prod(split[axis] for axis in free)
    grows = [place is not None, False, False]
    flat = same_order(call, permute(call, wide, order), (1, count * inputs, pixels), grows)
    kernels = (count * outputs, inputs, 1)
    kernel = turned.rearranged(lambda entries: entries.reshape(kernels), None)
    window = Window((1,), (1,), (1,), (0,), (pixels,))
    op = Conv(kernel.operand(3), None, window, count, transposed=False)
    apart = None if place is None else Place(0)
    made = call.step(op, only_data(flat), shape=(1, count * outputs, pixels), place=apart)
    sizes = tuple(outputs if axis == summed else split[axis] for axis in order)
    back = same_order(call, made, sizes, [axis in front for axis in order])
    narrow = permute(call, back, [int(axis) for axis in np.argsort(order)])
    result = list(shape)
    result[-2 if left else -1] = outputs
    return same_order(call, narrow, tuple(result), [axis == own for axis in range(rank)])


def _expanded(call: Call, value: Data, weight: Constant) -> tuple[Data, Place | None]:
    """Return the value for every position of the stack, and the place of the batch in it."""
    if weight.place is not None or len(value.shape) < 2:
        raise Unsupported(FIXED)
    rank = max(len(value.shape), len(weight.shape))
    own = (1,) * (rank - len(value.shape)) + value.shape
    stack = (1,) * (rank - len(weight.shape)) + weight.shape[:-2]
    shape = (*np.broadcast_shapes(own[:-2], stack), *own[-2:])
    place = value.place
    if place is not None:
        place = Place(place.axis + rank - len(value.shape), place.before)
        if place.axis < rank - 2 and stack[place.axis] != 1:
            raise Unsupported(FIXED)
    index = np.broadcast_to(indices(value.shape).reshape(own), shape)
    return moved(call, value, index, place), place


def repeated(call: Call, first: Value, second: Value) -> Value:
    """Return a product in which N·h matrices, the same h for each example, are reduced to h."""
    wide: list[Value] = []
    for value in (first, second):
        if isinstance(value, Constant):
            value.check_fixed()
            wide.append(replace(value, place=None))
        else:
            grows = [True, *[False] * len(value.shape)]
            wide.append(same_order(call, value, (1, *value.shape), grows))
    found = apply(call, "MatMul", *wide)
    return same_order(call, found, found.shape[1:], [True, *[False] * (len(found.shape) - 2)])


def of_several_images(call: Call, op: Conv, value: Data, weight: Constant, shape: Shape) -> Value:
    """Convolve images along axis 0 as one image with a further axis, where windows have one tap.

    shape: channels and sizes of the output. Without a place, a file of one example is read.
    """
    count, own = value.shape[0], len(value.shape)
    firsts = {item.dims[:1] for item in call.sink.model.inputs if item.dims}
    if own > 4 or (value.place != Place(0) and (value.place is not None or firsts != {(1,)})):
        raise Unsupported("a convolution of several images in an order of their own")
    axes = zip((1, 1, 1, 0, count), astuple(op.window), strict=True)
    window = Window(*((first, *rest) for first, rest in axes))
    kernel = weight.rearranged(lambda entries: entries[:, :, np.newaxis], None)
    op = replace(op, weight=kernel.operand(own + 1), window=window)
    grows, turn = [value.place is not None, *[False] * own], [0, 2, 1, *range(3, own + 1)]
    wide = only_data(permute(call, same_order(call, value, (1, *value.shape), grows), turn))
    channels, *sizes = shape
    made = call.step(op, wide, shape=(1, channels, count, *sizes), place=wide.place)
    return same_order(call, permute(call, made, turn), (count, *shape), grows[:-1])


def added_blocks(call: Call) -> Value:
    """Lower Col2Im: add up blocks of an image where they overlap.

    Taking the block [taps] at every spot is a convolution of the image with one kernel for each
    tap, which is 1 there; Col2Im is its transpose.
    """
    value, sizes, block = call.value(0), call.whole(1), call.whole(2)
    rank, taps = len(block), math.prod(block)
    strides, dilations = (call.integers(name) or [1] * rank for name in ("strides", "dilations"))
    pads = call.integers("pads") or [0] * (2 * rank)
    reach = [d * (b - 1) + 1 for d, b in zip(dilations, block, strict=True)]
    room = [a + x + y - r for a, x, y, r in zip(sizes, pads, pads[rank:], reach, strict=False)]
    spots = [r // s + 1 for r, s in zip(room, strides, strict=True)]
    channels, left = divmod(value.shape[1], taps)
    kernel = np.tile(np.eye(taps).reshape(taps, 1, *block), (channels, *[1] * (rank + 1)))
    shape = (value.shape[0], value.shape[1], *spots)
    grows = [value.place == Place(0), *[False] * (rank + 1)]
    image = same_order(call, value, shape, grows)
    if left or min(room) < 0:
        raise Unsupported("its blocks do not fit")
    extra = tuple(r % s for r, s in zip(room, strides, strict=True))
    ways = {"strides": tuple(strides), "dilations": tuple(dilations), "pads": tuple(pads)}
    ways |= {"output_padding": extra}
    return apply(call, "ConvTranspose", image, Constant.of(kernel), group=channels, **ways)
