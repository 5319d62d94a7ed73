"""Gemm and MatMul, and fixed matrices along one axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import numpy as np

from lipcert.geometry import Window
from lipcert.importer.arithmetic import cumulation
from lipcert.importer.build.builder import MASK, Builder, Handler, RefusedNodeError
from lipcert.importer.constant import Constant
from lipcert.importer.raw import RawNode
from lipcert.operand import Operand
from lipcert.ops.affine import Shift
from lipcert.ops.attention import Attention
from lipcert.ops.combine import Add, MatMul
from lipcert.ops.conv import Conv
from lipcert.ops.linear import Dense
from lipcert.ops.shape import Transpose
from lipcert.upper import FloatArray


def _gemm(builder: Builder, node: RawNode) -> str:
    """Y = alpha·A'·B' + beta·C, one of A and B constant."""
    left, right = node.inputs[:2]
    scale = Fraction(node.real("alpha", 1.0))
    if builder.is_data(left) and builder.is_data(right):
        raise RefusedNodeError("Gemm of two values that depend on the data", remedy="use MatMul")
    if builder.is_data(left):
        value = _facing(builder, left, bool(node.integer("transA", 0)), column=False)
        weight = builder.constant(right)
        if not node.integer("transB", 0):
            weight = weight.rearranged(np.transpose)
        flips_back = False
    else:
        value = _facing(builder, right, bool(node.integer("transB", 0)), column=True)
        weight = builder.constant(left)
        if node.integer("transA", 0):
            weight = weight.rearranged(np.transpose)
        flips_back = len(builder.shape(value)) == 2
    operand = builder.weight(weight.scaled(scale), left if builder.is_data(right) else right)
    addend = node.input(2)
    if flips_back or not addend or builder.is_data(addend):
        value = builder.emit(Dense(operand), value)
        value = builder.emit(Transpose((1, 0)), value) if flips_back else value
        return _plus(builder, node, value) if addend else value
    bias = builder.aligned(addend, node).scaled(Fraction(node.real("beta", 1.0)))
    if bias.array.size > weight.shape[0] or any(size > 1 for size in bias.shape[:-1]):
        return builder.emit(Shift(builder.operand(bias)), builder.emit(Dense(operand), value))
    outputs = weight.shape[0]
    vector = bias.rearranged(lambda array: np.broadcast_to(array.reshape(-1), (outputs,)))
    return builder.emit(Dense(operand, builder.weight(vector, addend)), value)


def _facing(builder: Builder, name: str, is_flipped: bool, *, column: bool) -> str:
    """The data factor with the contracted axis last."""
    value = builder.value(name)
    if len(builder.shape(value)) == 2 and is_flipped != column:
        return builder.emit(Transpose((1, 0)), value)
    return value


def _plus(builder: Builder, node: RawNode, value: str) -> str:
    """Add the third input of a Gemm."""
    shape = builder.layout(node.outputs[0]).example_shape
    beta = node.real("beta", 1.0)
    addend = node.inputs[2]
    value = builder.reshape(value, shape)
    if builder.is_data(addend):
        return builder.emit(Add((1.0, beta)), value, builder.expand(builder.value(addend), shape))
    bias = builder.aligned(addend, node).scaled(Fraction(beta))
    return builder.emit(Shift(builder.operand(bias)), value)


def _matmul(builder: Builder, node: RawNode) -> str:
    left, right = node.inputs[:2]
    if builder.is_data(left) and builder.is_data(right):
        return _data_product(builder, node)
    if builder.is_data(left):
        return _times_constant(builder, node)
    return _constant_times(builder, node)


def _data_product(builder: Builder, node: RawNode) -> str:
    """Both factors depend on the data: batched matrix product per example."""
    values = []
    for name in node.inputs[:2]:
        if builder.layout(name).spoils_matrices:
            raise RefusedNodeError("the batch lies in a matrix axis of a product of two values")
        values.append(builder.value(name))
    return builder.emit(MatMul(), *values)


def _times_constant(builder: Builder, node: RawNode) -> str:
    """x·W with constant W: [in] or [in, out]."""
    name = node.inputs[1]
    if _is_stack(builder.constant(name)):
        return _stacked(builder, node, 1)
    weight = _matrix(builder.constant(name))
    if len(weight.shape) == 1:
        row = weight.rearranged(lambda array: array.reshape(1, -1))
        return builder.emit(Dense(builder.weight(row, name)), builder.value(node.inputs[0]))
    layout = builder.layout(node.inputs[0])
    if layout.axis == layout.rank - 1 and layout.batch > 1:
        raise RefusedNodeError("the batch lies in the contracted axis")
    operand = builder.weight(weight.rearranged(np.transpose), name)
    return builder.emit(Dense(operand), builder.value(node.inputs[0]))


def _constant_times(builder: Builder, node: RawNode) -> str:
    """W·x with constant W: [out, in]: the product acts on the last axis but one."""
    name = node.inputs[0]
    if _is_stack(builder.constant(name)):
        return _stacked(builder, node, 0)
    weight = _matrix(builder.constant(name))
    if len(weight.shape) == 1:
        weight = weight.rearranged(lambda array: array.reshape(1, -1))
    operand = builder.weight(weight, name)
    layout = builder.layout(node.inputs[1])
    if layout.rank == 1:  # a vector: one product, and no axis that stays
        return builder.emit(Dense(operand), builder.value(node.inputs[1]))
    value = builder.reshape(builder.value(node.inputs[1]), layout.full_example_shape)
    return _on_rows(builder, operand, value)


def _on_rows(builder: Builder, operand: Operand, value: str) -> str:
    return _along(builder, operand, value, len(builder.shape(value)) - 2)


def along_axis(builder: Builder, value: str, axis: int, matrix: FloatArray) -> str:
    """A fixed matrix [outputs, inputs] applied along one axis of an IR value."""
    return _along(builder, Operand(matrix), value, axis)


def _along(builder: Builder, operand: Operand, value: str, axis: int) -> str:
    last = len(builder.shape(value)) - 1
    if axis == last:
        return builder.emit(Dense(operand), value)
    swap = list(range(last + 1))
    swap[axis], swap[last] = last, axis
    flipped = builder.emit(Transpose(tuple(swap)), value)
    return builder.emit(Transpose(tuple(swap)), builder.emit(Dense(operand), flipped))


def _stacked(builder: Builder, node: RawNode, position: int) -> str:
    """A different constant matrix for each of several positions: a grouped 1x1 convolution.

    Proof: with the positions h as groups, the values x[h, p, :] are the channels of group h at
    pixel p; both are the same block diagonal map, with the same parameters.
    """
    name = node.inputs[position]
    other = node.inputs[1 - position]
    weight = builder.constant(name)
    if position == 1:  # [h, in, out] -> [h, out, in]
        weight = weight.rearranged(lambda array: np.swapaxes(array, -1, -2))
    layout = builder.layout(other)
    shape = (1,) * (len(weight.shape) - layout.rank) + layout.full_example_shape
    full = builder.reshape(builder.value(other), shape)
    *stack, outputs, inputs = weight.shape
    stack = [1] * (len(shape) - len(weight.shape)) + stack
    if any(size not in {1, own} for size, own in zip(stack, shape[:-2], strict=True)):
        raise RefusedNodeError("a stack of constant matrices that enlarges the value")
    groups = [axis for axis, size in enumerate(stack) if size > 1]
    free = [axis for axis in range(len(stack)) if axis not in groups]
    row, column = len(shape) - 2, len(shape) - 1
    inner, kept = (column, row) if position == 1 else (row, column)
    perm = (*groups, inner, *free, kept)
    moved = builder.emit(Transpose(perm), full)
    count = math.prod(stack)
    pixels = math.prod(shape) // (count * inputs)
    flat = builder.reshape(moved, (count * inputs, pixels))
    kernel = weight.rearranged(lambda array: array.reshape(count * outputs, inputs, 1))
    operand = builder.weight(kernel, name)
    product = builder.emit(Conv(operand, None, (Window(pixels, 1),), count), flat)
    sizes = [outputs if axis == inner else shape[axis] for axis in perm]
    back = tuple(int(place) for place in np.argsort(perm))
    return builder.emit(Transpose(back), builder.reshape(product, tuple(sizes)))


def _is_stack(constant: Constant) -> bool:
    return any(size != 1 for size in constant.shape[:-2])


def _matrix(constant: Constant) -> Constant:
    """Without leading axes of size 1."""
    if len(constant.shape) <= 2:
        return constant
    shape = constant.shape[-2:]
    view = constant.view
    if view is not None:
        view = replace(view, index=view.index.reshape(shape))
    return Constant(constant.array.reshape(shape), view)


def _cumulated(builder: Builder, node: RawNode) -> str:
    """CumSum: a triangular matrix of ones along the axis."""
    layout = builder.layout(node.inputs[0])
    axis = int(builder.constant(node.inputs[1], "axis").array.reshape(-1)[0]) % layout.rank
    matrix = cumulation(layout.shape[axis], node)
    return along_axis(builder, builder.value(node.inputs[0]), layout.example_axis(axis), matrix)


def _attention(builder: Builder, node: RawNode) -> str:
    """Macro layer: Q, transposed keys, V, and perhaps a mask."""
    for name in node.inputs[:3]:
        if builder.layout(name).spoils_matrices:
            raise RefusedNodeError("the batch lies in a matrix axis of an attention")
    mask = None
    if node.input(3):
        layout = builder.layout(node.outputs[0])
        mask = layout.example_part(builder.constant(node.inputs[3], MASK)).array
        if np.any(np.all(np.isneginf(mask), axis=-1)):
            raise RefusedNodeError(
                "its mask hides every token from some query, whose softmax is 0/0",
                remedy="let every query see a token, such as itself",
            )
    op = Attention(node.attributes["scale"], mask)
    return builder.emit(op, *(builder.value(name) for name in node.inputs[:3]))


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {"CumSum": _cumulated, "Gemm": _gemm, "MatMul": _matmul, "ScaledAttention": _attention}
)
