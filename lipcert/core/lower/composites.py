"""Lower operators that are composed of others, on data and constants.

Every function follows ONNX's definition of its operator, so it needs no rule of its own.
"""

import math
from typing import Final

import numpy as np

from lipcert.core.kinds import DivideByNorm
from lipcert.core.lower.call import Call
from lipcert.core.lower.constant_node import sum_of_sources
from lipcert.core.lower.entry_ops import check_alike
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.layout_ops import check_apart, normal_axes
from lipcert.core.lower.moves import permute
from lipcert.core.lower.spelling import (
    along_axis,
    apply,
    inverse_root,
    number,
    reduced,
    reduced_axes,
    whole,
)
from lipcert.core.lower.values import Array, Constant, Value, check_size

_MVN_EPSILON: Final = float(np.float32(1e-9))
"""The number that MeanVarianceNormalization adds to the standard deviation, by its definition."""


def lp_normalization(call: Call) -> Value:
    """x/‖x‖ along one axis, and 0 at 0; for the norm 1 it is u/‖u‖₁ of u = x/‖x‖₂, if ‖u‖₁ ≥ 1."""
    order, value = call.integer("p", 2), call.value(0)
    (axis,) = normal_axes([call.integer("axis", -1)], len(value.shape))
    check_apart(value, (axis,))
    if order not in {1, 2}:
        raise Unsupported("only the norms 1 and 2 are defined")
    if isinstance(value, Constant):
        return apply(
            call, "Div", value, reduced(call, f"ReduceL{order}", value, (axis,), keep=True)
        )
    one, zero = (number(item).operand(len(value.shape)) for item in (1.0, 0.0))
    op = DivideByNorm((axis,), one, zero, math.inf)
    value = call.step(op, value, shape=value.shape, place=value.place)
    if order == 2:
        return value
    length = reduced(call, "ReduceL1", value, (axis,), keep=True)
    return apply(call, "Div", value, apply(call, "Max", length, number(1.0)))


def mean_variance(call: Call) -> Value:
    """(x − mean)/(σ + ε) with σ = ‖x − mean‖/√n."""
    value = call.value(0)
    axes = normal_axes(call.integers("axes") or (0, 2, 3), len(value.shape))
    count = math.prod(value.shape[axis] for axis in axes)
    if count < 2:
        raise Unsupported("it normalises single entries, of which nothing is left")
    mean = reduced(call, "ReduceMean", value, axes, keep=True)
    centred = apply(call, "Sub", value, mean)
    length = reduced(call, "ReduceL2", centred, axes, keep=True)
    deviation = apply(call, "Mul", length, inverse_root(count))
    return apply(call, "Div", centred, apply(call, "Add", deviation, number(_MVN_EPSILON)))


def mean(call: Call) -> Value:
    """The mean of several values, entry by entry."""
    check_alike(call)
    values = call.values()
    total = values[0]
    if len(values) > 1:
        total = apply(call, "Sum", *values)
    return apply(call, "Div", total, number(float(len(values))))


def log_sum(call: Call) -> Value:
    """ln Σ x over axes."""
    value = call.value(0)
    axes, keeps = reduced_axes(call, value)
    return apply(call, "Log", reduced(call, "ReduceSum", value, axes or (), keep=keeps))


def cumulated(call: Call) -> Value:
    """Lower CumSum: a product with a triangular matrix of ones."""
    value, places = call.value(0), call.whole(1)
    (axis,) = normal_axes(places, len(value.shape))
    check_apart(value, (axis,))
    size = value.shape[axis]
    is_late, is_reverse = call.integer("exclusive", 0), call.integer("reverse", 0)
    check_size((size, size))
    matrix = np.triu(np.ones((size, size)), 1 if is_late else 0)
    matrix = np.ascontiguousarray(matrix.T) if is_reverse else matrix
    if isinstance(value, Constant) and _is_whole(value):
        return _whole_sums(value, matrix, axis)
    return along_axis(call, value, axis, Constant.of(matrix))


def _is_whole(value: Constant) -> bool:
    """Whether it holds whole numbers, or floats with whole values that float32 sums exactly."""
    if not value.is_float:
        return True
    is_exact = value.lo is value.hi and value.varies is None
    return (
        is_exact and np.array_equal(np.trunc(value.lo), value.lo) and np.abs(value.lo).sum() < 2**24
    )


def _whole_sums(value: Constant, matrix: Array, axis: int) -> Constant:
    value.check_fixed()
    if value.lo is not value.hi or np.abs(value.lo.astype(np.float64)).sum() > 2.0**31:
        raise Unsupported("a whole number is too large")
    kind = value.lo.dtype
    found = value.lo.swapaxes(axis, -1) @ matrix.astype(kind)
    cast = found.swapaxes(axis, -1).astype(kind)
    return Constant(cast, cast, sum_of_sources(value), value.place)


def gemm(call: Call) -> Value:
    """alpha·A·B + beta·C, where A and B may be transposed."""
    factors = []
    for place, name in enumerate(("transA", "transB")):
        value = call.value(place)
        if len(value.shape) != 2:
            raise Unsupported("a factor is not a matrix")
        factors.append(permute(call, value, [1, 0]) if call.integer(name, 0) else value)
    product = _times(call, apply(call, "MatMul", *factors), call.real("alpha", 1.0))
    beta = call.real("beta", 1.0)
    if not call.has(2):
        return product
    total = apply(call, "Add", product, _times(call, call.value(2), beta))
    if total.shape != product.shape:
        raise Unsupported("its third input enlarges the product")
    return total


def _times(call: Call, value: Value, factor: float) -> Value:
    return value if factor == 1.0 else apply(call, "Mul", value, number(factor))


def softmax(call: Call) -> Value:
    """Lower Softmax of constants: e^x over its sum along an axis."""
    value, version = call.value(0), call.version
    axis = call.integer("axis", -1 if version >= 13 else 1)
    if version < 13 and axis not in {-1, len(value.shape) - 1}:
        raise Unsupported("it reads along several axes")
    check_apart(value, normal_axes([axis], len(value.shape)))
    largest = reduced(call, "ReduceMax", value, (axis,), keep=True)
    powers = apply(call, "Exp", apply(call, "Sub", value, largest))
    return apply(call, "Div", powers, reduced(call, "ReduceSum", powers, (axis,), keep=True))


def layer_norm(call: Call) -> Value:
    """(x − mean)/√(variance + ε) over the last axes of constants, times factors, plus offsets."""
    value, rank = call.value(0), len(call.value(0).shape)
    (first,) = normal_axes([call.integer("axis", -1)], rank)
    call.integer("stash_type", 1)
    axes = tuple(range(first, rank))
    check_apart(value, axes)
    mean = reduced(call, "ReduceMean", value, axes, keep=True)
    squares = reduced(call, "ReduceSumSquare", apply(call, "Sub", value, mean), axes, keep=True)
    variance = apply(call, "Div", squares, number(float(math.prod(value.shape[first:]))))
    given = [call.value(place) if call.has(place) else None for place in (1, 2)]
    return _standard(call, value, mean, variance, *given)


def batch_norm(call: Call) -> Value:
    """(x − mean)/√(variance + ε) of constants, such as kernels that are standardised."""
    call.real("momentum", 0.9)
    if call.integer("training_mode", 0) or any(call.node.outputs[1:]):
        raise Unsupported("a batch normalization in training mode")
    value, *parts = call.values()
    shape = (value.shape[1], *(1,) * (len(value.shape) - 2))
    sizes = whole(*shape)
    scale, shift, mean, variance = (apply(call, "Reshape", part, sizes) for part in parts)
    return _standard(call, value, mean, variance, scale, shift)


def _standard(call: Call, value: Value, mean: Value, variance: Value, *more: Value | None) -> Value:
    floored = apply(call, "Add", variance, number(call.real("epsilon", 1e-5)))
    result = apply(call, "Sub", value, mean)
    result = apply(call, "Div", result, apply(call, "Sqrt", floored))
    for operator, given in zip(("Mul", "Add"), more, strict=True):
        result = result if given is None else apply(call, operator, result, given)
    return result
