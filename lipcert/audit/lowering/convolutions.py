"""Convolutions and transposed convolutions in one to three dimensions.

What enters: x [examples, channels, *sizes], the kernel as ONNX has it. Pads that torch's kernels
cannot express are added, or cut away, explicitly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.signature import Function, Tensors
from lipcert.core.program import Conv
from lipcert.graph.geometry import Geometry, Window

_FORWARD: Final = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: Final = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
RANKS: Final = frozenset(_FORWARD)
"""numbers of axes over which torch has windows"""


def convolution(op: Conv, geometry: Geometry) -> Function:
    """geometry: of the windows, from x to y, or from y to x if the convolution is transposed."""
    return (_transposed if op.transposed else _forward)(op, geometry)


def shared_pads(geometry: Geometry) -> tuple[int, ...] | None:
    """One pad per dimension, where as many at both ends give the same windows; otherwise None."""
    pads = []
    for window in geometry:
        room = window.size + 2 * window.pad_begin - _reach(window)
        if room < 0 or room // window.stride + 1 != window.outputs:
            return None
        pads.append(window.pad_begin)
    return tuple(pads)


def pad_widths(geometry: Geometry) -> list[int]:
    """The pads in the order of `functional.pad`: last dimension first."""
    return [pad for w in reversed(geometry) for pad in (w.pad_begin, w.pad_end)]


def _forward(op: Conv, geometry: Geometry) -> Function:
    pads, run = shared_pads(geometry), _FORWARD[len(geometry)]

    def convolved(inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
        x = inputs[0] if pads is not None else functional.pad(inputs[0], pad_widths(geometry))
        return run(
            x,
            tensors["weight"],
            tensors.get("bias"),
            stride=op.window.strides,
            padding=pads or (0,) * len(geometry),
            dilation=op.window.dilations,
            groups=op.groups,
        )

    return convolved


def _transposed(op: Conv, geometry: Geometry) -> Function:
    symmetric = all(w.pad_begin == w.pad_end for w in geometry)
    pads = tuple(w.pad_begin if symmetric else 0 for w in geometry)
    run, beyond = _TRANSPOSED[len(geometry)], tuple(map(_unread, geometry))

    def convolved(inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
        padded = run(
            inputs[0],
            tensors["weight"],
            tensors.get("bias"),
            stride=op.window.strides,
            padding=pads,
            output_padding=beyond,
            groups=op.groups,
            dilation=op.window.dilations,
        )
        for axis, window in enumerate(() if symmetric else geometry, start=2):
            padded = padded.narrow(axis, window.pad_begin, window.size)
        return padded

    return convolved


def _reach(window: Window) -> int:
    """Positions from the first to the last tap of a window, both included."""
    return window.dilation * (window.taps - 1) + 1


def _unread(window: Window) -> int:
    """Padded positions after the last window: fewer than the stride."""
    covered = (window.outputs - 1) * window.stride + _reach(window)
    return window.size + window.pad_begin + window.pad_end - covered
