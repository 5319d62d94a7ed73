"""Evaluation of the constant parts of a graph (mostly shape arithmetic) in numpy.

What enters: a raw node and its constant inputs. What leaves: its outputs, in the data types of the
file. ValueError where the node is not sound, KeyError where the op is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from onnx import helper

from lipcert.importer.limits import MAX_CONSTANT_ELEMENTS
from lipcert.importer.raw import Array, RawNode
from lipcert.importer.rearrange import REARRANGERS, axes_of, rearranger, split_sizes

__all__ = ["cumulation", "evaluate_constant", "is_known"]

Inputs = Sequence[Array | None]
Evaluate = Callable[[RawNode, Inputs], Array]


def is_known(op_type: str) -> bool:
    """Whether `evaluate_constant` can compute this op."""
    return op_type in _ARITHMETIC or op_type in REARRANGERS or op_type == "Split"


def evaluate_constant(node: RawNode, inputs: Inputs) -> tuple[Array, ...]:
    """The outputs of a node all of whose inputs are constant."""
    with np.errstate(all="ignore"):
        if node.op_type == "Split":
            return _split(node, inputs)
        if node.op_type in REARRANGERS:
            return (rearranger(node, inputs[1:])(_given(inputs, 0)),)
        return (np.asarray(_ARITHMETIC[node.op_type](node, inputs)),)


def _given(inputs: Inputs, position: int) -> Array:
    found = inputs[position] if position < len(inputs) else None
    if found is None:
        raise ValueError("a required input is missing")
    return found


def _split(node: RawNode, inputs: Inputs) -> tuple[Array, ...]:
    array = _given(inputs, 0)
    axis = node.integer("axis", 0)
    sizes = split_sizes(node, inputs[1:], array.shape[axis])
    return tuple(np.split(array, np.cumsum(sizes)[:-1], axis=axis))


def _constant(node: RawNode, inputs: Inputs) -> Array:
    del inputs
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32)):
        if name in node.attributes:
            return np.asarray(node.attributes[name], dtype=dtype)
    for name in ("value_int", "value_ints"):
        if name in node.attributes:
            return np.asarray(node.attributes[name], dtype=np.int64)
    if "value" not in node.attributes:
        raise ValueError("Constant holds no number")
    return np.asarray(node.attributes["value"])


def _constant_of_shape(node: RawNode, inputs: Inputs) -> Array:
    shape = tuple(int(item) for item in _given(inputs, 0).reshape(-1))
    if math.prod(shape) > MAX_CONSTANT_ELEMENTS or min(shape, default=0) < 0:
        raise ValueError("the shape of ConstantOfShape is negative or too large")
    value = np.asarray(node.attributes.get("value", np.zeros(1, np.float32)))
    return np.full(shape, value.reshape(-1)[0])


def _range(node: RawNode, inputs: Inputs) -> Array:
    del node
    start, limit, step = (_given(inputs, index).reshape(-1)[0] for index in range(3))
    if step == 0 or (limit - start) / step > MAX_CONSTANT_ELEMENTS:
        raise ValueError("Range is endless or too long")
    return np.arange(start, limit, step, dtype=start.dtype)


def _cast(node: RawNode, inputs: Inputs) -> Array:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(node.integer("to", 1)))
    return _given(inputs, 0).astype(dtype)


def _cast_like(node: RawNode, inputs: Inputs) -> Array:
    del node
    return _given(inputs, 0).astype(_given(inputs, 1).dtype)


def _concat(node: RawNode, inputs: Inputs) -> Array:
    arrays = [_given(inputs, index) for index in range(len(inputs))]
    return np.concatenate(arrays, axis=node.integer("axis", 1))


def _divide(node: RawNode, inputs: Inputs) -> Array:
    del node
    a, b = _given(inputs, 0), _given(inputs, 1)
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if np.any(b == 0):
        raise ValueError("integer division by zero")
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


def _where(node: RawNode, inputs: Inputs) -> Array:
    del node
    return np.where(_given(inputs, 0), _given(inputs, 1), _given(inputs, 2))


def _power(node: RawNode, inputs: Inputs) -> Array:
    del node
    base = _given(inputs, 0)
    return np.asarray(np.power(base, _given(inputs, 1))).astype(base.dtype)


def _reduction(function: Callable[..., Array]) -> Evaluate:
    def apply(node: RawNode, inputs: Inputs) -> Array:
        axes = axes_of(node, inputs[1:])
        keep = bool(node.integer("keepdims", 1))
        array = _given(inputs, 0)
        return np.asarray(function(array, axis=axes, keepdims=keep)).astype(array.dtype)

    return apply


def _unary(function: Callable[[Array], Array]) -> Evaluate:
    def apply(node: RawNode, inputs: Inputs) -> Array:
        del node
        return np.asarray(function(_given(inputs, 0)))

    return apply


def _binary(function: Callable[[Array, Array], Array]) -> Evaluate:
    def apply(node: RawNode, inputs: Inputs) -> Array:
        del node
        a, b = _given(inputs, 0), _given(inputs, 1)
        if math.prod(np.broadcast_shapes(a.shape, b.shape)) > MAX_CONSTANT_ELEMENTS:
            raise ValueError("a constant is too large")
        return np.asarray(function(a, b))

    return apply


def _folded(function: Callable[[Array, Array], Array]) -> Evaluate:
    """A binary function over any number of inputs, from left to right."""

    def apply(node: RawNode, inputs: Inputs) -> Array:
        result = _given(inputs, 0)
        for position in range(1, len(inputs)):
            result = _binary(function)(node, [result, inputs[position]])
        return result

    return apply


def _matmul(node: RawNode, inputs: Inputs) -> Array:
    del node
    a, b = _given(inputs, 0), _given(inputs, 1)
    if a.size * b.shape[-1] > MAX_CONSTANT_ELEMENTS**2:
        raise ValueError("a product of constants is too large")
    return np.asarray(a @ b)


def _one_hot(node: RawNode, inputs: Inputs) -> Array:
    indices, depth, values = (_given(inputs, position) for position in range(3))
    count = int(depth.reshape(-1)[0])
    if count < 1 or indices.size * count > MAX_CONSTANT_ELEMENTS:
        raise ValueError("the depth of OneHot is not positive or too large")
    whole = indices.astype(np.int64)
    places = np.where(whole < 0, whole + count, whole)
    hot = places[..., np.newaxis] == np.arange(count)
    axis = node.integer("axis", -1)
    return np.moveaxis(np.where(hot, values[1], values[0]), -1, axis)


def _eye_like(node: RawNode, inputs: Inputs) -> Array:
    like = _given(inputs, 0)
    dtype = node.attributes.get("dtype")
    kind = like.dtype if dtype is None else np.dtype(helper.tensor_dtype_to_np_dtype(int(dtype)))
    rows, columns = like.shape
    return np.asarray(np.eye(rows, columns, k=node.integer("k", 0))).astype(kind)


def _trilu(node: RawNode, inputs: Inputs) -> Array:
    diagonal = inputs[1] if len(inputs) > 1 else None
    offset = 0 if diagonal is None else int(diagonal.reshape(-1)[0])
    keep = np.triu if node.integer("upper", 1) else np.tril
    return np.asarray(keep(_given(inputs, 0), offset))


def _cumulated(node: RawNode, inputs: Inputs) -> Array:
    array, axis = _given(inputs, 0), int(_given(inputs, 1).reshape(-1)[0])
    matrix = cumulation(array.shape[axis], node).astype(array.dtype)
    return np.moveaxis(np.moveaxis(array, axis, -1) @ matrix.T, -1, axis)


def cumulation(size: int, node: RawNode) -> Array:
    """The matrix of a CumSum along an axis of this size: ones on and below the diagonal."""
    matrix = np.tril(np.ones((size, size)), -1 if node.integer("exclusive", 0) else 0)
    return matrix.T if node.integer("reverse", 0) else matrix


def _gather_elements(node: RawNode, inputs: Inputs) -> Array:
    array, indices = _given(inputs, 0), _given(inputs, 1).astype(np.int64)
    axis = node.integer("axis", 0)
    places = np.where(indices < 0, indices + array.shape[axis], indices)
    return np.take_along_axis(array, places, axis=axis)


_ARITHMETIC: Final[Mapping[str, Evaluate]] = MappingProxyType(
    {
        "Constant": _constant,
        "ConstantOfShape": _constant_of_shape,
        "Range": _range,
        "Cast": _cast,
        "CastLike": _cast_like,
        "Concat": _concat,
        "Div": _divide,
        "Where": _where,
        "Pow": _power,
        "Add": _binary(np.add),
        "Sub": _binary(np.subtract),
        "Mul": _binary(np.multiply),
        "Max": _folded(np.maximum),
        "Min": _folded(np.minimum),
        "Sum": _folded(np.add),
        "MatMul": _matmul,
        "OneHot": _one_hot,
        "EyeLike": _eye_like,
        "Trilu": _trilu,
        "CumSum": _cumulated,
        "GatherElements": _gather_elements,
        "Mod": _binary(np.mod),
        "Equal": _binary(np.equal),
        "Less": _binary(np.less),
        "LessOrEqual": _binary(np.less_equal),
        "Greater": _binary(np.greater),
        "GreaterOrEqual": _binary(np.greater_equal),
        "And": _binary(np.logical_and),
        "Or": _binary(np.logical_or),
        "Not": _unary(np.logical_not),
        "Neg": _unary(np.negative),
        "Abs": _unary(np.abs),
        "Floor": _unary(np.floor),
        "Ceil": _unary(np.ceil),
        "Round": _unary(np.round),
        "Sign": _unary(np.sign),
        "Sin": _unary(np.sin),
        "Cos": _unary(np.cos),
        "Tanh": _unary(np.tanh),
        "Relu": _unary(lambda array: np.maximum(array, 0)),
        "Sqrt": _unary(np.sqrt),
        "Reciprocal": _unary(np.reciprocal),
        "Exp": _unary(np.exp),
        "Log": _unary(np.log),
        "ReduceProd": _reduction(np.prod),
        "ReduceSum": _reduction(np.sum),
        "ReduceMax": _reduction(np.max),
        "ReduceMin": _reduction(np.min),
        "ReduceMean": _reduction(np.mean),
    }
)
