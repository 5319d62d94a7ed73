"""Sliding windows: resolution of kernel_shape, strides, pads, auto_pad and ceil_mode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from lipcert.core.program import Shape
from lipcert.geometry import Geometry, Window
from lipcert.importer.build.builder import RefusedNodeError
from lipcert.importer.raw import RawNode


@final
@dataclass(frozen=True, slots=True)
class Sliding:
    """Attributes of a windowed op over some spatial axes; pads are those of the file."""

    taps: Shape
    strides: Shape
    dilations: Shape
    begin: Shape
    end: Shape

    def geometry(self, sizes: Shape, outputs: Shape) -> Geometry:
        """Windows with exactly these numbers of outputs; padding is added where ceil_mode asks."""
        windows = []
        for axis, size in enumerate(sizes):
            span = reach(self.taps[axis], self.dilations[axis])
            needed = (outputs[axis] - 1) * self.strides[axis] + span - size - self.begin[axis]
            window = Window(
                size,
                self.taps[axis],
                self.strides[axis],
                self.dilations[axis],
                self.begin[axis],
                max(self.end[axis], needed),
            )
            if window.outputs > outputs[axis]:  # windows that start in the padding do not count
                window = replace(window, pad_end=max(needed, 0))
            if window.outputs != outputs[axis]:
                raise ValueError(f"axis {axis} has {window.outputs} windows, not {outputs[axis]}")
            windows.append(window)
        return tuple(windows)


def reach(taps: int, dilation: int) -> int:
    """Positions from the first to the last tap of a window, both included."""
    return dilation * (taps - 1) + 1


def read_sliding(node: RawNode, taps: Shape, sizes: Shape) -> Sliding:
    """Read the attributes of a Conv or pooling node with these taps over these input sizes."""
    rank = len(taps)
    strides = node.integers("strides") or (1,) * rank
    dilations = node.integers("dilations") or (1,) * rank
    if {len(strides), len(dilations), len(sizes)} != {rank}:
        raise ValueError("strides, dilations and kernel_shape have different lengths")
    if min((*taps, *strides, *dilations), default=1) < 1:
        raise ValueError("kernel_shape, strides and dilations must be positive")
    pads = node.integers("pads") or (0,) * (2 * rank)
    begin, end = pads[:rank], pads[rank:]
    mode = node.text("auto_pad", "NOTSET")
    if mode == "VALID":
        begin = end = (0,) * rank
    elif mode.startswith("SAME"):
        if node.op_type != "Conv" and max(dilations, default=1) > 1:
            reason = f"auto_pad {mode} of a dilated pool, which onnxruntime pads as if not dilated"
            raise RefusedNodeError(reason, "LC003", "export with explicit pads")
        totals = tuple(
            (-(-size // stride) - 1) * stride + reach(tap, dilation) - size
            for size, tap, stride, dilation in zip(sizes, taps, strides, dilations, strict=True)
        )
        if min(totals, default=0) < -1:
            reason = f"auto_pad {mode} where windows leave entries out, which onnxruntime may cut"
            raise RefusedNodeError(reason, "LC003", "export with explicit pads")
        begin, end = split_padding(tuple(max(total, 0) for total in totals), mode)
    elif mode != "NOTSET":
        raise ValueError(f"unknown auto_pad {mode!r}")
    if len(end) != rank or min((*begin, *end), default=0) < 0:
        raise RefusedNodeError("negative or incomplete pads", "LC016")
    return Sliding(taps, strides, dilations, begin, end)


def split_padding(totals: Shape, mode: str) -> tuple[Shape, Shape]:
    """SAME_UPPER puts the odd position at the end, SAME_LOWER at the beginning."""
    small = tuple(total // 2 for total in totals)
    large = tuple(total - half for total, half in zip(totals, small, strict=True))
    return (small, large) if mode == "SAME_UPPER" else (large, small)
