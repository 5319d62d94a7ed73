"""Pad and Concat, also with constants between the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from lipcert.importer.build.builder import Builder, Handler
from lipcert.importer.build.shape import pick
from lipcert.importer.constant import Constant
from lipcert.importer.raw import RawNode
from lipcert.importer.rearrange import axes_of
from lipcert.ops.affine import Shift
from lipcert.ops.combine import Concat
from lipcert.ops.shape import Pad, PadMode


def _pad(builder: Builder, node: RawNode) -> str:
    layout = builder.layout(node.inputs[0])
    begin, end = _pads(builder, node, layout.rank)
    if not layout.is_merged:
        del begin[layout.axis]
        del end[layout.axis]
    mode = PadMode(node.text("mode", "constant"))
    number = node.real("value", 0.0)
    if node.since_version >= 11 and node.input(2):
        constant = builder.constant(node.inputs[2], "value").scalar()
        number = 0.0 if constant is None else constant
    value = builder.value(node.inputs[0])
    for axis, size in enumerate(builder.shape(value)):  # negative pads cut
        first, last = max(0, -begin[axis]), size - max(0, -end[axis])
        value = pick(builder, value, axis, range(first, last))
    op = Pad(tuple(max(0, pad) for pad in begin), tuple(max(0, pad) for pad in end), mode, number)
    return builder.emit(op, value)


def _pads(builder: Builder, node: RawNode, rank: int) -> tuple[list[int], list[int]]:
    pads = node.integers("pads")
    axes: tuple[int, ...] | None = None
    if pads is None:
        control = builder.control(node)
        pads = tuple(builder.constant(node.inputs[1], "pads").array.reshape(-1).tolist())
        axes = axes_of(node, control, 2)
    places = range(rank) if axes is None else [axis % rank for axis in axes]
    begin, end = [0] * rank, [0] * rank
    half = len(pads) // 2
    for axis, first, last in zip(places, pads[:half], pads[half:], strict=True):
        begin[axis], end[axis] = first, last
    return begin, end


def _concat(builder: Builder, node: RawNode) -> str:
    layout = builder.layout(node.outputs[0])
    axis = layout.example_axis(node.integer("axis", 1))
    names = [name for name in node.inputs if name]
    data = [name for name in names if builder.is_data(name)]
    if len(data) == len(names):
        return builder.emit(Concat(axis), *(builder.value(name) for name in names))
    return _concat_with_constants(builder, node, axis, names)


def _concat_with_constants(builder: Builder, node: RawNode, axis: int, names: Sequence[str]) -> str:
    """Values are padded with zeros where constants stand, which are then added."""
    layout = builder.layout(node.outputs[0])
    rank = len(layout.example_shape)
    parts: list[str] = []
    constants: list[tuple[int, Constant]] = []
    zeros, position = 0, 0
    for name in names:
        if builder.is_data(name):
            value = builder.value(name)
            if zeros:
                begin = tuple(zeros if place == axis else 0 for place in range(rank))
                value = builder.emit(Pad(begin, (0,) * rank), value)
            position += builder.shape(value)[axis] - zeros
            zeros = 0
            parts.append(value)
        else:
            constant = _example_slab(builder, node, name)
            constants.append((position, constant))
            position += constant.shape[axis]
            zeros += constant.shape[axis]
    if zeros:
        end = tuple(zeros if place == axis else 0 for place in range(rank))
        parts[-1] = builder.emit(Pad((0,) * rank, end), parts[-1])
    value = parts[0] if len(parts) == 1 else builder.emit(Concat(axis), *parts)
    for start, constant in constants:
        after = position - start - constant.shape[axis]
        pads = [(start, after) if place == axis else (0, 0) for place in range(rank)]
        value = builder.emit(Shift(builder.operand(constant.embedded(pads))), value)
    return value


def _example_slab(builder: Builder, node: RawNode, name: str) -> Constant:
    """A joined constant for one example; unlike in arithmetic, its axis may differ in size."""
    layout = builder.layout(node.outputs[0])
    constant = layout.example_part(builder.constant(name))
    if len(constant.shape) != len(layout.example_shape):
        raise ValueError("a joined constant has another rank")
    return constant


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType({"Concat": _concat, "Pad": _pad})
