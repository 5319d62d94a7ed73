"""Conv and ConvTranspose."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lipcert.core.program import Shape
from lipcert.geometry import Geometry, Window
from lipcert.importer.build.builder import Builder, Handler, RefusedNodeError
from lipcert.importer.build.windows import reach, read_sliding, split_padding
from lipcert.importer.raw import RawNode
from lipcert.operand import Operand
from lipcert.ops.conv import Conv, ConvTranspose


def _conv(builder: Builder, node: RawNode) -> str:
    value = builder.channels_first(node)
    weight = builder.constant(node.inputs[1], "weight")
    sizes = builder.shape(value)[1:]
    taps = _taps(node, weight.shape)
    outputs = builder.layout(node.outputs[0]).shape[2:]
    geometry = read_sliding(node, taps, sizes).geometry(sizes, outputs)
    operand = builder.weight(weight, node.inputs[1])
    return builder.emit(
        Conv(operand, _bias(builder, node), geometry, node.integer("group", 1)), value
    )


def _conv_transpose(builder: Builder, node: RawNode) -> str:
    value = builder.channels_first(node)
    weight = builder.constant(node.inputs[1], "weight")
    sizes = builder.shape(value)[1:]
    taps = _taps(node, weight.shape)
    outputs = builder.layout(node.outputs[0]).shape[2:]
    geometry = _adjoint_geometry(node, taps, sizes, outputs)
    operand = builder.weight(weight, node.inputs[1])
    return builder.emit(
        ConvTranspose(operand, _bias(builder, node), geometry, node.integer("group", 1)), value
    )


def _adjoint_geometry(node: RawNode, taps: Shape, sizes: Shape, outputs: Shape) -> Geometry:
    """The convolution from the output grid to the input grid of a ConvTranspose."""
    rank = len(taps)
    strides = node.integers("strides") or (1,) * rank
    dilations = node.integers("dilations") or (1,) * rank
    extra = node.integers("output_padding") or (0,) * rank
    pads = node.integers("pads") or (0,) * (2 * rank)
    begin, end = pads[:rank], pads[rank:]
    mode = node.text("auto_pad", "NOTSET")
    full = tuple(
        strides[axis] * (sizes[axis] - 1) + extra[axis] + reach(taps[axis], dilations[axis])
        for axis in range(rank)
    )
    if mode.startswith("SAME") or node.integers("output_shape") is not None:
        totals = tuple(full[axis] - outputs[axis] for axis in range(rank))
        begin, end = split_padding(totals, "SAME_UPPER" if mode == "SAME_UPPER" else "SAME_LOWER")
    elif mode == "VALID":
        begin = end = (0,) * rank
    if min((*begin, *end)) < 0:
        raise RefusedNodeError("negative pads", "LC016")
    windows = []
    for axis in range(rank):
        if full[axis] - begin[axis] - end[axis] != outputs[axis]:
            raise ValueError(f"axis {axis}: pads and output size contradict each other")
        window = Window(
            outputs[axis], taps[axis], strides[axis], dilations[axis], begin[axis], end[axis]
        )
        if window.outputs != sizes[axis]:
            raise RefusedNodeError("output_padding is not smaller than the stride")
        windows.append(window)
    return tuple(windows)


def _taps(node: RawNode, weight: Shape) -> Shape:
    taps = weight[2:]
    declared = node.integers("kernel_shape")
    if declared is not None and declared != taps:
        raise ValueError(f"kernel_shape {declared} contradicts the weight of shape {weight}")
    return taps


def _bias(builder: Builder, node: RawNode) -> Operand | None:
    name = node.input(2)
    return builder.weight(builder.constant(name, "bias"), name) if name else None


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {"Conv": _conv, "ConvTranspose": _conv_transpose}
)
