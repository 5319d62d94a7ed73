"""Reductions over axes, and what is left of a value without its mean or norm."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lipcert.core.program import Shape
from lipcert.importer.build.builder import Builder, Handler
from lipcert.importer.raw import RawNode
from lipcert.importer.rearrange import axes_of
from lipcert.ops.activation import Activation
from lipcert.ops.base import Op
from lipcert.ops.functions import Abs, Log, Power
from lipcert.ops.reduction import (
    Centre,
    DivideByNorm,
    ReduceLogSumExp,
    ReduceMean,
    ReduceNorm,
    ReduceSum,
)
from lipcert.ops.shape import Select, Sort


def _reduced_axes(builder: Builder, node: RawNode) -> Shape:
    """The axes of an example over which a Reduce node works."""
    layout = builder.layout(node.inputs[0])
    axes = axes_of(node, builder.control(node))
    if not axes:
        if node.integer("noop_with_empty_axes", 0):
            return ()
        axes = tuple(range(layout.rank))
    return tuple(sorted(layout.example_axis(axis) for axis in axes))


_Linear = type[ReduceMean] | type[ReduceSum]


def _keeps(node: RawNode) -> bool:
    return bool(node.integer("keepdims", 1))


def _reduced(builder: Builder, node: RawNode, value: str, op: _Linear) -> str:
    axes = _reduced_axes(builder, node)
    reduction: Op = op(axes, keepdims=_keeps(node))
    return builder.emit(reduction, value) if axes else value


def _linear(op: _Linear) -> Handler:
    return lambda builder, node: _reduced(builder, node, builder.value(node.inputs[0]), op)


def _sum_of_squares(builder: Builder, node: RawNode) -> str:
    square = builder.emit(Activation(Power(2.0)), builder.value(node.inputs[0]))
    return _reduced(builder, node, square, ReduceSum)


def _log_sum(builder: Builder, node: RawNode) -> str:
    total = _reduced(builder, node, builder.value(node.inputs[0]), ReduceSum)
    return builder.emit(Activation(Log()), total)


def _norm(p: int) -> Handler:
    def handle(builder: Builder, node: RawNode) -> str:
        axes = _reduced_axes(builder, node)
        value = builder.value(node.inputs[0])
        if not axes:
            return builder.emit(Activation(Abs()), value)
        return builder.emit(ReduceNorm(p, axes, keepdims=_keeps(node)), value)

    return handle


def _log_sum_exp(builder: Builder, node: RawNode) -> str:
    axes = _reduced_axes(builder, node)
    value = builder.value(node.inputs[0])
    return builder.emit(ReduceLogSumExp(axes, keepdims=_keeps(node)), value) if axes else value


def _extreme(builder: Builder, node: RawNode) -> str:
    """The largest (smallest) entry along an axis is the first of the sorted ones."""
    value = builder.value(node.inputs[0])
    for axis in _reduced_axes(builder, node):
        ordered = builder.emit(Sort(axis, descending=node.op_type == "ReduceMax"), value)
        value = builder.emit(Select(axis, (0,)), ordered)
    return value


def _macro_axes(builder: Builder, node: RawNode) -> Shape:
    """The axes of an example, from those of the file that a macro layer holds."""
    layout = builder.layout(node.inputs[0])
    return tuple(sorted(layout.example_axis(axis) for axis in node.attributes["axes"]))


def _centre(builder: Builder, node: RawNode) -> str:
    return builder.emit(Centre(_macro_axes(builder, node)), builder.value(node.inputs[0]))


def _divide_by_norm(builder: Builder, node: RawNode) -> str:
    radius, floor = node.attributes["radius"], node.attributes["floor"]
    op = DivideByNorm(_macro_axes(builder, node), radius, floor)
    return builder.emit(op, builder.value(node.inputs[0]))


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {
        "Centre": _centre,
        "DivideByNorm": _divide_by_norm,
        "ReduceL1": _norm(1),
        "ReduceL2": _norm(2),
        "ReduceLogSum": _log_sum,
        "ReduceLogSumExp": _log_sum_exp,
        "ReduceMax": _extreme,
        "ReduceMean": _linear(ReduceMean),
        "ReduceMin": _extreme,
        "ReduceSum": _linear(ReduceSum),
        "ReduceSumSquare": _sum_of_squares,
    }
)
