"""Add, Sub, Mul, Neg, Sum, Mean, Min, Max and Where, with constants or values."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import numpy as np

from lipcert.importer.build.builder import Builder, Handler, RefusedNodeError
from lipcert.importer.constant import Constant
from lipcert.importer.raw import RawNode
from lipcert.operand import Operand
from lipcert.ops.activation import Activation
from lipcert.ops.affine import Divide, Scale, Shift
from lipcert.ops.combine import Add, Extremum, Multiply
from lipcert.ops.functions import Clip, Power, Relu


def _full(builder: Builder, node: RawNode, name: str) -> str:
    """A data input, broadcast to the shape of the output."""
    return builder.expand(builder.value(name), builder.layout(node.outputs[0]).example_shape)


def _shift(builder: Builder, node: RawNode, value: str, constant: Constant) -> str:
    del node
    return builder.emit(Shift(builder.operand(constant)), value)


def _add(builder: Builder, node: RawNode) -> str:
    return _combination(builder, node, (1.0,) * len(node.inputs))


def _mean(builder: Builder, node: RawNode) -> str:
    share = 1.0 / len(node.inputs)
    if Fraction(share) * len(node.inputs) == 1:
        return _combination(builder, node, (share,) * len(node.inputs))
    total = _combination(builder, node, (1.0,) * len(node.inputs))
    return builder.emit(Divide(Operand(np.array(float(len(node.inputs))))), total)


def _subtract(builder: Builder, node: RawNode) -> str:
    return _combination(builder, node, (1.0, -1.0))


def _combination(builder: Builder, node: RawNode, coefficients: tuple[float, ...]) -> str:
    """Σ c_i·x_i over values, then a shift for every constant."""
    if node.attributes.get("broadcast", 0):
        raise RefusedNodeError("the old broadcast attribute is not supported")
    pairs = list(zip(node.inputs, coefficients, strict=True))
    data = [(name, factor) for name, factor in pairs if builder.is_data(name)]
    if len(data) == 1:
        value = _full(builder, node, data[0][0])
        if data[0][1] != 1.0:
            value = builder.emit(Scale(Operand(np.array(data[0][1]))), value)
    else:
        # the engine broadcasts as numpy does, the batch axis being at the same place everywhere
        values = [builder.value(name) for name, _ in data]
        value = builder.emit(Add(tuple(factor for _, factor in data)), *values)
        value = builder.expand(value, builder.layout(node.outputs[0]).example_shape)
    for name, factor in pairs:
        if not builder.is_data(name):
            constant = builder.aligned(name, node).scaled(Fraction(factor))
            value = _shift(builder, node, value, constant)
    return value


def _multiply(builder: Builder, node: RawNode) -> str:
    left, right = node.inputs
    if builder.is_data(left) and builder.is_data(right):
        first, second = builder.value(left), builder.value(right)
        if first == second:
            return builder.emit(Activation(Power(2.0)), first)
        return builder.emit(Multiply(), first, second)
    data, constant = (left, right) if builder.is_data(left) else (right, left)
    operand = builder.operand(builder.aligned(constant, node))
    return builder.emit(Scale(operand), _full(builder, node, data))


def _negate(builder: Builder, node: RawNode) -> str:
    return builder.emit(Scale(Operand(np.array(-1.0))), builder.value(node.inputs[0]))


def _maximum(builder: Builder, node: RawNode) -> str:
    return _extremum(builder, node, 1.0)


def _minimum(builder: Builder, node: RawNode) -> str:
    return _extremum(builder, node, -1.0)


def _extremum(builder: Builder, node: RawNode, sign: float) -> str:
    """The extremum of the values, then that with each constant."""
    values = [builder.value(name) for name in node.inputs if builder.is_data(name)]
    value = values[0]
    if len(values) > 1:
        value = builder.emit(Extremum(largest=sign > 0), *values)
    value = builder.expand(value, builder.layout(node.outputs[0]).example_shape)
    for name in node.inputs:
        if not builder.is_data(name):
            value = _limit(builder, value, builder.aligned(name, node), sign)
    return value


def _limit(builder: Builder, value: str, constant: Constant, sign: float) -> str:
    """max(x, c) or min(x, c) with a constant: a clip, or c ± relu(±(x − c))."""
    limit = constant.scalar()
    if limit is not None and not constant.is_parameter:
        clip = Clip(limit, np.inf) if sign > 0 else Clip(-np.inf, limit)
        return builder.emit(Activation(clip), value)
    shifted = builder.emit(Shift(builder.operand(constant.scaled(Fraction(-1)))), value)
    gap = shifted if sign > 0 else builder.emit(Scale(Operand(np.array(-1.0))), shifted)
    positive = builder.emit(Activation(Relu()), gap)
    if sign < 0:
        positive = builder.emit(Scale(Operand(np.array(-1.0))), positive)
    return builder.emit(Shift(builder.operand(constant)), positive)


def _where(builder: Builder, node: RawNode) -> str:
    """Where(mask, a, b) = mask·a + (1 − mask)·b for a constant mask."""
    mask = builder.aligned(node.inputs[0], node).array.astype(np.float64)
    parts = []
    total: Constant | None = None
    for name, weight in ((node.inputs[1], mask), (node.inputs[2], 1.0 - mask)):
        if builder.is_data(name):
            parts.append(builder.emit(Scale(Operand(weight)), _full(builder, node, name)))
        else:
            constant = builder.aligned(name, node)
            if constant.is_parameter:
                raise RefusedNodeError("a mask of parameters is not supported")
            total = Constant(np.asarray(constant.array.astype(np.float64) * weight))
    value = parts[0] if len(parts) == 1 else builder.emit(Add((1.0, 1.0)), *parts)
    return value if total is None else _shift(builder, node, value, total)


def _triangle(builder: Builder, node: RawNode) -> str:
    """Trilu: a mask of zeros and ones over the last two axes, neither of which is the batch."""
    name = node.input(1)
    offset = int(builder.constant(name, "k").array.reshape(-1)[0]) if name else 0
    keep = np.triu if node.integer("upper", 1) else np.tril
    mask = keep(np.ones(builder.layout(node.inputs[0]).shape[-2:]), offset)
    return builder.emit(Scale(Operand(mask)), builder.value(node.inputs[0]))


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {
        "Add": _add,
        "Max": _maximum,
        "Mean": _mean,
        "Min": _minimum,
        "Mul": _multiply,
        "Neg": _negate,
        "Sub": _subtract,
        "Sum": _add,
        "Trilu": _triangle,
        "Where": _where,
    }
)
