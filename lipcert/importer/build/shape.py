"""Ops that move entries of one value: reshaping, transposition, selection, repetition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from lipcert.importer.build.builder import Builder, Handler, RefusedNodeError
from lipcert.importer.raw import RawNode
from lipcert.importer.rearrange import slices_of, split_sizes
from lipcert.ops.shape import Select, Sort, Tile, Transpose


def _same(builder: Builder, node: RawNode) -> str:
    """Ops that keep the row-major order; the builder adds the reshape."""
    return builder.value(node.inputs[0])


def _dropout(builder: Builder, node: RawNode) -> str:
    flag = node.input(2)
    is_training = bool(np.any(builder.constant(flag, "training_mode").array)) if flag else False
    if is_training or (node.since_version < 7 and node.integer("is_test", 0) == 0):
        raise RefusedNodeError(
            "dropout in training mode", "LC011", "call model.eval() before torch.onnx.export"
        )
    return builder.value(node.inputs[0])


def _transpose(builder: Builder, node: RawNode) -> str:
    layout = builder.layout(node.inputs[0])
    perm = node.integers("perm") or tuple(reversed(range(layout.rank)))
    value = builder.value(node.inputs[0])
    if not layout.is_merged:
        perm = tuple(axis - (axis > layout.axis) for axis in perm if axis != layout.axis)
    if perm == tuple(range(len(perm))):
        return value
    return builder.emit(Transpose(perm), value)


def pick(builder: Builder, value: str, axis: int, indices: Sequence[int]) -> str:
    """Entries along an axis of an IR value; all of them in order need no node."""
    size = builder.shape(value)[axis]
    if tuple(indices) == tuple(range(size)):
        return value
    return builder.emit(Select(axis, tuple(indices)), value)


def _slice(builder: Builder, node: RawNode) -> str:
    layout = builder.layout(node.inputs[0])
    value = builder.value(node.inputs[0])
    for axis, part in enumerate(slices_of(node, builder.control(node), layout.rank)):
        if axis != layout.axis or layout.is_one:
            places = range(*part.indices(layout.shape[axis]))
            value = pick(builder, value, layout.example_axis(axis), places)
    return value


def _split(builder: Builder, node: RawNode) -> dict[str, str]:
    layout = builder.layout(node.inputs[0])
    axis = node.integer("axis", 0) % layout.rank
    value = builder.value(node.inputs[0])
    start = 0
    parts: dict[str, str] = {}
    for name, size in zip(
        node.outputs, split_sizes(node, builder.control(node), layout.shape[axis]), strict=True
    ):
        if name:
            places = range(start, start + size)
            parts[name] = pick(builder, value, layout.example_axis(axis), places)
        start += size
    return parts


def _gather(builder: Builder, node: RawNode) -> str:
    layout = builder.layout(node.inputs[0])
    axis = node.integer("axis", 0) % layout.rank
    size = layout.shape[axis]
    indices = builder.constant(node.inputs[1], "index").array.astype(np.int64).reshape(-1)
    if np.any(indices < -size) or np.any(indices >= size):
        raise RefusedNodeError("an index is out of range", "LC016")
    value = builder.value(node.inputs[0])
    return pick(builder, value, layout.example_axis(axis), (indices % size).tolist())


def _gather_elements(builder: Builder, node: RawNode) -> str:
    """Entries at constant places along one axis: a selection of the flattened value."""
    layout = builder.layout(node.inputs[0])
    axis = layout.example_axis(node.integer("axis", 0))
    constant = builder.constant(node.inputs[1], "index")
    indices = builder.layout(node.outputs[0]).example_part(constant).array.astype(np.int64)
    value = builder.value(node.inputs[0])
    shape = builder.shape(value)
    if np.any(indices < -shape[axis]) or np.any(indices >= shape[axis]):
        raise RefusedNodeError("an index is out of range", "LC016")
    places = np.indices(indices.shape)
    places[axis] = indices % shape[axis]
    flat = np.ravel_multi_index(tuple(places), shape).reshape(-1)
    row = builder.reshape(value, (math.prod(shape),))
    return builder.reshape(pick(builder, row, 0, flat.tolist()), indices.shape)


def _expand(builder: Builder, node: RawNode) -> str:
    shape = builder.layout(node.outputs[0]).example_shape
    return builder.expand(builder.value(node.inputs[0]), shape)


def _tile(builder: Builder, node: RawNode) -> str:
    layout = builder.layout(node.inputs[0])
    repeats = builder.constant(node.inputs[1], "repeats").array.reshape(-1).tolist()
    if not layout.is_merged:
        del repeats[layout.axis]
    return builder.emit(Tile(tuple(repeats)), builder.value(node.inputs[0]))


def _depth_to_space(builder: Builder, node: RawNode) -> str:
    value = builder.channels_first(node)
    channels, height, width = builder.shape(value)
    block = node.integer("blocksize", 1)
    depth = channels // (block * block)
    if node.text("mode", "DCR") == "DCR":
        split, perm = (block, block, depth, height, width), (2, 3, 0, 4, 1)
    else:
        split, perm = (depth, block, block, height, width), (0, 3, 1, 4, 2)
    moved = builder.emit(Transpose(perm), builder.reshape(value, split))
    return builder.reshape(moved, (depth, height * block, width * block))


def _space_to_depth(builder: Builder, node: RawNode) -> str:
    value = builder.channels_first(node)
    channels, height, width = builder.shape(value)
    block = node.integer("blocksize", 1)
    split = (channels, height // block, block, width // block, block)
    moved = builder.emit(Transpose((2, 4, 0, 1, 3)), builder.reshape(value, split))
    return builder.reshape(moved, (block * block * channels, height // block, width // block))


def _top_k(builder: Builder, node: RawNode) -> str:
    layout = builder.layout(node.inputs[0])
    axis = layout.example_axis(node.integer("axis", -1))
    if node.integer("sorted", 1) != 1:
        raise RefusedNodeError("an unsorted TopK has no defined order")
    value = builder.value(node.inputs[0])
    count = builder.layout(node.outputs[0]).shape[node.integer("axis", -1)]
    ordered = builder.emit(Sort(axis, descending=bool(node.integer("largest", 1))), value)
    return pick(builder, ordered, axis, range(count))


def _max_min(builder: Builder, node: RawNode) -> str:
    """Larger and smaller of the two halves of an axis: a sort of pairs (macro layer)."""
    layout = builder.layout(node.inputs[0])
    axis = layout.example_axis(node.integer("axis", -1))
    value = builder.value(node.inputs[0])
    shape = builder.shape(value)
    pairs = builder.reshape(value, (*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :]))
    is_descending = bool(node.integer("largest", 1))
    return builder.reshape(builder.emit(Sort(axis, descending=is_descending), pairs), shape)


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {
        "Cast": _same,
        "CastLike": _same,
        "DepthToSpace": _depth_to_space,
        "Dropout": _dropout,
        "Expand": _expand,
        "Flatten": _same,
        "Gather": _gather,
        "GatherElements": _gather_elements,
        "Identity": _same,
        "MaxMin": _max_min,
        "Reshape": _same,
        "Slice": _slice,
        "SpaceToDepth": _space_to_depth,
        "Split": _split,
        "Squeeze": _same,
        "Tile": _tile,
        "TopK": _top_k,
        "Transpose": _transpose,
        "Unsqueeze": _same,
    }
)
