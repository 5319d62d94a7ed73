"""Pooling over sliding windows and over whole images, and local response normalization."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lipcert.core.program import Shape
from lipcert.geometry import Geometry, Window
from lipcert.importer.build.builder import Builder, Handler, RefusedNodeError
from lipcert.importer.build.windows import Sliding, read_sliding
from lipcert.importer.raw import RawNode
from lipcert.ops.normalization import Lrn
from lipcert.ops.pooling import AveragePool, LpPool, MaxPool
from lipcert.ops.reduction import ReduceMean


def _windows(builder: Builder, node: RawNode) -> tuple[str, Sliding, Geometry]:
    value = builder.channels_first(node)
    sizes = builder.shape(value)[1:]
    taps = node.integers("kernel_shape")
    if taps is None or len(taps) != len(sizes):
        raise RefusedNodeError(f"kernel_shape {taps} does not fit the input", "LC016")
    sliding = read_sliding(node, taps, sizes)
    outputs = builder.layout(node.outputs[0]).shape[2:]
    return value, sliding, sliding.geometry(sizes, outputs)


def _max_pool(builder: Builder, node: RawNode) -> str:
    value, _, geometry = _windows(builder, node)
    return builder.emit(MaxPool(geometry), value)


def _average_pool(builder: Builder, node: RawNode) -> str:
    value, sliding, geometry = _windows(builder, node)
    includes = bool(node.integer("count_include_pad", 0))
    divisors = tuple(
        _divisors(window, sliding.end[axis], includes=includes)
        for axis, window in enumerate(geometry)
    )
    return builder.emit(AveragePool(geometry, divisors), value)


def _divisors(window: Window, pad_end: int, *, includes: bool) -> Shape:
    """How many positions each window counts: its taps inside the input, or inside the pads."""
    first = -window.pad_begin if includes else 0
    last = window.size + (pad_end if includes else 0)
    counts = []
    for output in range(window.outputs):
        start = output * window.stride - window.pad_begin
        places = range(start, start + window.taps * window.dilation, window.dilation)
        counts.append(sum(1 for place in places if first <= place < last))
    if min(counts) < 1:
        raise RefusedNodeError("an average over no position at all", "LC016")
    return tuple(counts)


def _lp_pool(builder: Builder, node: RawNode) -> str:
    value, _, geometry = _windows(builder, node)
    return builder.emit(LpPool(geometry, node.integer("p", 2)), value)


def _whole(sizes: Shape) -> Geometry:
    return tuple(Window(size, size) for size in sizes)


def _global_average(builder: Builder, node: RawNode) -> str:
    value = builder.channels_first(node)
    axes = tuple(range(1, len(builder.shape(value))))
    return builder.emit(ReduceMean(axes, keepdims=True), value)


def _global_max(builder: Builder, node: RawNode) -> str:
    value = builder.channels_first(node)
    return builder.emit(MaxPool(_whole(builder.shape(value)[1:])), value)


def _global_lp(builder: Builder, node: RawNode) -> str:
    value = builder.channels_first(node)
    return builder.emit(LpPool(_whole(builder.shape(value)[1:]), node.integer("p", 2)), value)


def _response(builder: Builder, node: RawNode) -> str:
    op = Lrn(
        size=node.integer("size", 1),
        strength=node.real("alpha", 1e-4),
        power=node.real("beta", 0.75),
        floor=node.real("bias", 1.0),
    )
    return builder.emit(op, builder.channels_first(node))


HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {
        "AveragePool": _average_pool,
        "GlobalAveragePool": _global_average,
        "GlobalLpPool": _global_lp,
        "GlobalMaxPool": _global_max,
        "LRN": _response,
        "LpPool": _lp_pool,
        "MaxPool": _max_pool,
    }
)
