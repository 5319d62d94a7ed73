"""Evaluation of the constant parts of a graph (mostly shape arithmetic) in numpy.

What enters: a raw node and its constant inputs. What leaves: its outputs, in the data types of the
file. ValueError where the node is not sound, KeyError where the op is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from onnx import helper

from lipcert.importer.creation import CREATION, Evaluate, Inputs, given
from lipcert.importer.limits import MAX_CONSTANT_ELEMENTS
from lipcert.importer.raw import Array, RawNode
from lipcert.importer.rearrange import REARRANGERS, axes_of, rearranger, split_sizes


def is_known(op_type: str) -> bool:
    """Whether `evaluate_constant` can compute this op."""
    return op_type in _ARITHMETIC or op_type in REARRANGERS or op_type == "Split"


def evaluate_constant(node: RawNode, inputs: Inputs) -> tuple[Array, ...]:
    """The outputs of a node all of whose inputs are constant."""
    with np.errstate(all="ignore"):
        if node.op_type == "Split":
            return _split(node, inputs)
        if node.op_type in REARRANGERS:
            return (rearranger(node, inputs[1:])(given(inputs, 0)),)
        return (np.asarray(_ARITHMETIC[node.op_type](node, inputs)),)


def _split(node: RawNode, inputs: Inputs) -> tuple[Array, ...]:
    array = given(inputs, 0)
    axis = node.integer("axis", 0)
    sizes = split_sizes(node, inputs[1:], array.shape[axis])
    return tuple(np.split(array, np.cumsum(sizes)[:-1], axis=axis))


def _cast(node: RawNode, inputs: Inputs) -> Array:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(node.integer("to", 1)))
    return given(inputs, 0).astype(dtype)


def _cast_like(node: RawNode, inputs: Inputs) -> Array:
    del node
    return given(inputs, 0).astype(given(inputs, 1).dtype)


def _concat(node: RawNode, inputs: Inputs) -> Array:
    arrays = [given(inputs, index) for index in range(len(inputs))]
    return np.concatenate(arrays, axis=node.integer("axis", 1))


def _divide(node: RawNode, inputs: Inputs) -> Array:
    del node
    a, b = given(inputs, 0), given(inputs, 1)
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if np.any(b == 0):
        raise ValueError("integer division by zero")
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


def _where(node: RawNode, inputs: Inputs) -> Array:
    del node
    return np.where(given(inputs, 0), given(inputs, 1), given(inputs, 2))


def _power(node: RawNode, inputs: Inputs) -> Array:
    del node
    base = given(inputs, 0)
    return np.asarray(np.power(base, given(inputs, 1))).astype(base.dtype)


def _reduction(function: Callable[..., Array]) -> Evaluate:
    def apply(node: RawNode, inputs: Inputs) -> Array:
        axes = axes_of(node, inputs[1:])
        if not axes and not node.integer("noop_with_empty_axes", 0):
            axes = None
        keep = bool(node.integer("keepdims", 1))
        array = given(inputs, 0)
        return np.asarray(function(array, axis=axes, keepdims=keep)).astype(array.dtype)

    return apply


def _unary(function: Callable[[Array], Array]) -> Evaluate:
    def apply(node: RawNode, inputs: Inputs) -> Array:
        del node
        return np.asarray(function(given(inputs, 0)))

    return apply


def _binary(function: Callable[[Array, Array], Array]) -> Evaluate:
    def apply(node: RawNode, inputs: Inputs) -> Array:
        del node
        a, b = given(inputs, 0), given(inputs, 1)
        if math.prod(np.broadcast_shapes(a.shape, b.shape)) > MAX_CONSTANT_ELEMENTS:
            raise ValueError("a constant is too large")
        return np.asarray(function(a, b))

    return apply


def _folded(function: Callable[[Array, Array], Array]) -> Evaluate:
    """A binary function over any number of inputs, from left to right."""

    def apply(node: RawNode, inputs: Inputs) -> Array:
        result = given(inputs, 0)
        for position in range(1, len(inputs)):
            result = _binary(function)(node, [result, inputs[position]])
        return result

    return apply


def _matmul(node: RawNode, inputs: Inputs) -> Array:
    del node
    a, b = given(inputs, 0), given(inputs, 1)
    if a.size * b.shape[-1] > MAX_CONSTANT_ELEMENTS**2:
        raise ValueError("a product of constants is too large")
    return np.asarray(a @ b)


def _cumulated(node: RawNode, inputs: Inputs) -> Array:
    array, axis = given(inputs, 0), int(given(inputs, 1).reshape(-1)[0])
    matrix = cumulation(array.shape[axis], node).astype(array.dtype)
    return np.moveaxis(np.moveaxis(array, axis, -1) @ matrix.T, -1, axis)


def cumulation(size: int, node: RawNode) -> Array:
    """The matrix of a CumSum along an axis of this size: ones on and below the diagonal."""
    matrix = np.tril(np.ones((size, size)), -1 if node.integer("exclusive", 0) else 0)
    return matrix.T if node.integer("reverse", 0) else matrix


def _gather_elements(node: RawNode, inputs: Inputs) -> Array:
    array, indices = given(inputs, 0), given(inputs, 1).astype(np.int64)
    axis = node.integer("axis", 0)
    places = np.where(indices < 0, indices + array.shape[axis], indices)
    return np.take_along_axis(array, places, axis=axis)


def _clip(node: RawNode, inputs: Inputs) -> Array:
    limits = [node.attributes.get(name) for name in ("min", "max")]
    for position, limit in enumerate(inputs[1:3]):
        limits[position] = limit
    low, high = limits
    array = given(inputs, 0)
    if low is None and high is None:
        return array
    return np.asarray(np.clip(array, low, high)).astype(array.dtype)


def _gemm(node: RawNode, inputs: Inputs) -> Array:
    a, b = given(inputs, 0), given(inputs, 1)
    a = a.T if node.integer("transA", 0) else a
    b = b.T if node.integer("transB", 0) else b
    product = node.real("alpha", 1.0) * _matmul(node, [a, b])
    if len(inputs) > 2 and inputs[2] is not None:
        product = product + node.real("beta", 1.0) * inputs[2]
    return np.asarray(product).astype(a.dtype)


def _modulo(node: RawNode, inputs: Inputs) -> Array:
    return _binary(np.fmod if node.integer("fmod", 0) else np.mod)(node, inputs)


def _length(array: Array, **kwargs: Any) -> Array:
    return np.asarray(np.sqrt(np.sum(array * array, **kwargs)))


_ARITHMETIC: Final[Mapping[str, Evaluate]] = MappingProxyType(
    {
        **CREATION,
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
        "Gemm": _gemm,
        "MatMul": _matmul,
        "CumSum": _cumulated,
        "GatherElements": _gather_elements,
        "Mod": _modulo,
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
        "Clip": _clip,
        "IsInf": _unary(np.isinf),
        "IsNaN": _unary(np.isnan),
        "Sigmoid": _unary(lambda array: 1 / (1 + np.exp(-array))),
        "Xor": _binary(np.logical_xor),
        "ReduceL1": _reduction(lambda array, **kwargs: np.sum(np.abs(array), **kwargs)),
        "ReduceL2": _reduction(_length),
        "ReduceSumSquare": _reduction(lambda array, **kwargs: np.sum(array * array, **kwargs)),
        "ReduceProd": _reduction(np.prod),
        "ReduceSum": _reduction(np.sum),
        "ReduceMax": _reduction(np.max),
        "ReduceMin": _reduction(np.min),
        "ReduceMean": _reduction(np.mean),
    }
)
