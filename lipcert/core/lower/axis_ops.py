"""Lower operators that read along axes: reductions, softmax, normalizations."""

import math
from collections.abc import Sequence

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.functions import activated
from lipcert.core.lower.layout_ops import check_apart, normal_axes
from lipcert.core.lower.moves import indices, moved
from lipcert.core.lower.spelling import reduced_axes, without_axes
from lipcert.core.lower.values import Array, Constant, Data, Value
from lipcert.core.program import Op, Shape
from lipcert.core.token_kinds import Normalize, ReduceSum, Scale, Shift, Softmax


def reduction(call: Call) -> Value:
    """Lower Reduce nodes; without axes, they reduce over all axes, or over none."""
    value, kind = call.data(), call.node.op_type
    axes, keeps = reduced_axes(call, value)
    if kind == "ReduceSumSquare":
        value = activated(call, value, "power", 2.0)
    if axes is None:  # it acts on every entry separately
        return activated(call, value, "abs") if kind in {"ReduceL1", "ReduceL2"} else value
    if not axes:
        raise Unsupported("a reduction over no axis")
    is_sum = kind in {"ReduceMean", "ReduceSum", "ReduceSumSquare"}
    op = ReduceSum(axes, mean=kind == "ReduceMean") if is_sum else _extreme_or_norm(kind, axes)
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(value.shape))
    found = call.step(op, value, shape=shape, place=value.place)
    return without_axes(call, found, axes, keeps=keeps)


def _extreme_or_norm(kind: str, axes: Shape) -> Op:
    from lipcert.core.kinds import ReduceLogSumExp, ReduceMax, ReduceNorm  # noqa: PLC0415

    match kind:
        case "ReduceMax" | "ReduceMin":
            return ReduceMax(axes, minimum=kind == "ReduceMin")
        case "ReduceLogSumExp":
            return ReduceLogSumExp(axes)
    return ReduceNorm(axes, 1 if kind == "ReduceL1" else 2, 0.0)


def softmax(call: Call) -> Value:
    """Lower Softmax along one axis; before operator set 13, along all axes from one on together."""
    value = call.data()
    rank = len(value.shape)
    logarithm = call.node.op_type == "LogSoftmax"
    (axis,) = normal_axes([call.integer("axis", -1 if call.version >= 13 else 1)], rank)
    if call.version >= 13 or axis == rank - 1:
        check_apart(value, (axis,))
        return call.step(Softmax(axis, logarithm), value, shape=value.shape, place=value.place)
    check_apart(value, range(axis, rank))
    flat = (*value.shape[:axis], math.prod(value.shape[axis:]))
    joined = moved(call, value, indices(flat), value.place)
    result = call.step(Softmax(axis, logarithm), joined, shape=flat, place=value.place)
    return moved(call, result, indices(value.shape), value.place)


def normalized(call: Call, value: Data, axes: Sequence[int], *, centred: bool = True) -> Data:
    """Add a normalization over these axes, without factors."""
    epsilon = call.real("epsilon", 1e-5)
    if epsilon < 0.0 or not axes:
        raise Unsupported("epsilon is negative, or there is no axis")
    check_apart(value, axes)
    op = Normalize(tuple(axes), epsilon, centred)
    return call.step(op, value, shape=value.shape, place=value.place)


def normalization(call: Call) -> Value:
    """Lower layer normalizations, with their factors and offsets."""
    value = call.data()
    rank = len(value.shape)
    (first,) = normal_axes([call.integer("axis", -1)], rank)
    call.integer("stash_type", 1)
    centred = call.node.op_type == "LayerNormalization"
    result = normalized(call, value, range(first, rank), centred=centred)
    return affine(call, result, value.shape[first:])


def affine(call: Call, value: Data, shape: Shape, repeats: int = 1) -> Data:
    """Multiply by the scale and add the shift, each of this trailing shape."""
    for place, op in ((1, Scale), (2, Shift)):
        if call.has(place):
            operand = _fitted(call.constant(place), shape, repeats).operand(len(value.shape))
            value = call.step(op(operand), value, shape=value.shape, place=value.place)
    return value


def _fitted(constant: Constant, shape: Shape, repeats: int) -> Constant:
    if constant.lo.size * repeats != math.prod(shape) or constant.place is not None:
        raise Unsupported("a parameter does not fit the value")

    def repeated(entries: Array) -> Array:
        return (entries if repeats == 1 else np.repeat(entries, repeats)).reshape(shape)

    return constant.rearranged(repeated, None, repeats)
