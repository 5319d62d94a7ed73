"""Normalization layers, Softmax and LogSoftmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from lipcert.importer.build.builder import Builder, Handler, RefusedNodeError
from lipcert.importer.constant import Constant
from lipcert.importer.raw import RawNode
from lipcert.operand import Operand
from lipcert.ops.normalization import BatchNorm, GroupNorm, LayerNorm, RmsNorm
from lipcert.ops.shape import Transpose
from lipcert.ops.softmax import LogSoftmax, Softmax


def _epsilon(node: RawNode) -> float:
    epsilon = node.real("epsilon", 1e-5)
    if not (math.isfinite(epsilon) and epsilon >= 0.0):
        raise RefusedNodeError(f"epsilon is {epsilon}", "LC016")
    return epsilon


def _optional(builder: Builder, node: RawNode, position: int) -> Operand | None:
    name = node.input(position)
    return builder.operand(builder.constant(name, "scale or bias")) if name else None


def _batch_norm(builder: Builder, node: RawNode) -> str:
    value = builder.channels_first(node)
    if node.since_version < 9 and node.integer("spatial", 1) != 1:
        raise RefusedNodeError("spatial=0 is not supported")
    scale, bias, mean, variance = (builder.constant(name) for name in node.inputs[1:5])
    epsilon = _epsilon(node)
    if np.any(variance.array.astype(np.float64) + epsilon <= 0.0):
        raise RefusedNodeError("the variance plus epsilon is not positive", "LC016")
    op = BatchNorm(
        mean=_statistic(builder, mean),
        variance=_statistic(builder, variance),
        epsilon=epsilon,
        scale=builder.operand(scale),
        bias=builder.operand(bias),
    )
    return builder.emit(op, value)


def _statistic(builder: Builder, constant: Constant) -> Operand:
    """A running mean or variance is not trained, whatever its name."""
    del builder
    return Constant(constant.array).operand()


def _layer_norm(builder: Builder, node: RawNode) -> str:
    return builder.emit(
        LayerNorm(
            _trailing(builder, node),
            _epsilon(node),
            _optional(builder, node, 1),
            _optional(builder, node, 2),
        ),
        builder.value(node.inputs[0]),
    )


def _axes_norm(builder: Builder, node: RawNode) -> str:
    """Macro layer: a LayerNorm without parameters over axes that need not be the last."""
    layout = builder.layout(node.inputs[0])
    value = builder.value(node.inputs[0])
    axes = [layout.example_axis(axis) for axis in node.attributes["axes"]]
    others = [axis for axis in range(len(builder.shape(value))) if axis not in axes]
    perm = (*others, *axes)
    back = tuple(int(axis) for axis in np.argsort(perm))
    moved = builder.emit(Transpose(perm), value)
    return builder.emit(Transpose(back), builder.emit(LayerNorm(len(axes), _epsilon(node)), moved))


def _rms_norm(builder: Builder, node: RawNode) -> str:
    op = RmsNorm(_trailing(builder, node), _epsilon(node), _optional(builder, node, 1))
    return builder.emit(op, builder.value(node.inputs[0]))


def _trailing(builder: Builder, node: RawNode) -> int:
    """Number of trailing axes that are normalised; none of them is the batch axis."""
    layout = builder.layout(node.inputs[0])
    return layout.rank - node.integer("axis", -1) % layout.rank


def _instance_norm(builder: Builder, node: RawNode) -> str:
    value = builder.channels_first(node)
    channels = builder.shape(value)[0]
    op = GroupNorm(
        channels, _epsilon(node), _optional(builder, node, 1), _optional(builder, node, 2)
    )
    return builder.emit(op, value)


def _group_norm(builder: Builder, node: RawNode) -> str:
    value = builder.channels_first(node)
    channels, groups = builder.shape(value)[0], node.integer("num_groups", 1)
    if groups < 1 or channels % groups:
        raise RefusedNodeError(f"{groups} groups do not divide {channels} channels", "LC016")
    scale, bias = builder.constant(node.inputs[1]), builder.constant(node.inputs[2])
    if node.since_version < 21:  # one entry per group
        repeats = channels // groups
        scale = scale.rearranged(lambda array: np.repeat(array, repeats))
        bias = bias.rearranged(lambda array: np.repeat(array, repeats))
    op = GroupNorm(groups, _epsilon(node), builder.operand(scale), builder.operand(bias))
    return builder.emit(op, value)


def _softmax(op: type[Softmax] | type[LogSoftmax]) -> Handler:
    def handle(builder: Builder, node: RawNode) -> str:
        layout = builder.layout(node.inputs[0])
        value = builder.value(node.inputs[0])
        if node.since_version >= 13:
            return builder.emit(op(layout.example_axis(node.integer("axis", -1))), value)
        first = node.integer("axis", 1) % layout.rank  # all later axes form one
        shape = builder.shape(value)
        head = shape[: len(shape) - (layout.rank - first)]
        flat = builder.reshape(value, (*head, math.prod(shape[len(head) :])))
        return builder.reshape(builder.emit(op(len(head)), flat), shape)

    return handle


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {
        "AxesNormalization": _axes_norm,
        "BatchNormalization": _batch_norm,
        "GroupNormalization": _group_norm,
        "InstanceNormalization": _instance_norm,
        "LayerNormalization": _layer_norm,
        "LogSoftmax": _softmax(LogSoftmax),
        "RMSNormalization": _rms_norm,
        "Softmax": _softmax(Softmax),
    }
)
