"""Lower operators on whole images, which have their channels on axis 1."""

import math

import numpy as np

from lipcert.core.interval import Interval, exact
from lipcert.core.kinds import BatchNorm, LocalResponse
from lipcert.core.lower.axis_ops import affine, normalized
from lipcert.core.lower.call import Call
from lipcert.core.lower.conv_ops import images, norm_order
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.moves import indices, moved
from lipcert.core.lower.spelling import reduced
from lipcert.core.lower.values import Constant, Value


def global_pool(call: Call) -> Value:
    """Lower a pool over all positions of each channel."""
    value = images(call)
    axes = tuple(range(2, len(value.shape)))
    if not axes:
        raise Unsupported("a reduction over no axis")
    kind = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}.get(call.node.op_type)
    return reduced(call, kind or f"ReduceL{norm_order(call)}", value, axes, keep=True)


def local_response(call: Call) -> Value:
    """Lower LRN, along the channels of an image or a row."""
    value, size = images(call), call.integer("size", 0)
    strength, power = call.real("alpha", 1e-4), call.real("beta", 0.75)
    floor = call.real("bias", 1.0)
    if size < 1 or size % 2 == 0 or min(strength, power) < 0.0 or floor <= 0.0:
        raise Unsupported("its size is even, or its alpha, beta or bias is out of range")
    op = LocalResponse(size, strength, power, floor)
    return call.step(op, value, shape=value.shape, place=value.place)


def image_normalization(call: Call) -> Value:
    """Lower instance and group normalizations, with their factors and offsets."""
    value = images(call)
    channels, rank = value.shape[1], len(value.shape)
    shape = (channels, *(1,) * (rank - 2))
    if call.node.op_type == "InstanceNormalization":
        result = normalized(call, value, range(2, rank))
        return affine(call, result, shape)
    groups = call.integer("num_groups", 0)
    call.integer("stash_type", 1)
    if groups < 1 or channels % groups:
        raise Unsupported("the groups do not divide the channels")
    parts = (value.shape[0], groups, math.prod(value.shape[1:]) // groups)
    split = moved(call, value, indices(parts), value.place)
    result = moved(call, normalized(call, split, (2,)), indices(value.shape), value.place)
    return affine(call, result, shape, repeats=1 if call.version >= 21 else channels // groups)


def batch_norm(call: Call) -> Value:
    """Lower a batch normalization with its running statistics."""
    value = images(call)
    epsilon = call.real("epsilon", 1e-5)
    call.real("momentum", 0.9)
    extra = [name for name in call.node.outputs[1:] if name]
    if call.integer("training_mode", 0) or extra:
        raise Unsupported("a batch normalization in training mode")
    if call.integer("spatial", 1) != 1:
        raise Unsupported("a batch normalization of every position")
    operands = [call.constant(place).operand(1) for place in range(1, 5)]
    if any(operand.shape != (value.shape[1],) for operand in operands):
        raise Unsupported("a parameter does not fit the channels")
    scale, shift, mean, variance = operands
    total = Interval(variance.lo, variance.hi) + exact(np.full(value.shape[1], epsilon))
    if not (total.lo > 0.0).all():
        raise Unsupported("a variance is not positive")
    inverse = total.root().reciprocal()
    made = Constant(inverse.lo, inverse.hi, dict.fromkeys(variance.sources, np.inf))
    if variance.sources:
        from lipcert.core.lower.slopes import of_entries  # noqa: PLC0415  for such alone

        slopes = -(exact(0.5) * inverse * total.reciprocal())
        made = of_entries(made, call.constant(4), slopes)
    op = BatchNorm(scale, shift, mean, made.operand(1))
    return call.step(op, value, shape=value.shape, place=value.place)
