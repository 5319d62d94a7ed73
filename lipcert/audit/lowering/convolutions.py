"""Convolutions and transposed convolutions in one to three dimensions.

What enters: x [examples, channels, *sizes], the kernel as ONNX has it. Pads that torch's kernels
cannot express are added, or cut away, explicitly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.dispatch import Tensors, lower, obstacle
from lipcert.geometry import Geometry, Window
from lipcert.ops.conv import Conv, ConvTranspose

_FORWARD: Final = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: Final = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


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


@lower.register
def _conv(op: Conv, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    (x,) = inputs
    pads = shared_pads(op.geometry)
    if pads is None:
        x, pads = functional.pad(x, pad_widths(op.geometry)), (0,) * len(op.geometry)
    return _FORWARD[len(op.geometry)](
        x,
        tensors["weight"],
        tensors.get("bias"),
        stride=_strides(op.geometry),
        padding=pads,
        dilation=_dilations(op.geometry),
        groups=op.groups,
    )


@lower.register
def _conv_transpose(op: ConvTranspose, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    symmetric = all(w.pad_begin == w.pad_end for w in op.geometry)
    pads = tuple(w.pad_begin if symmetric else 0 for w in op.geometry)
    padded = _TRANSPOSED[len(op.geometry)](
        inputs[0],
        tensors["weight"],
        tensors.get("bias"),
        stride=_strides(op.geometry),
        padding=pads,
        output_padding=tuple(_unread(w) for w in op.geometry),
        groups=op.groups,
        dilation=_dilations(op.geometry),
    )
    if symmetric:
        return padded
    for axis, window in enumerate(op.geometry, start=2):
        padded = padded.narrow(axis, window.pad_begin, window.size)
    return padded


@obstacle.register(Conv)
@obstacle.register(ConvTranspose)
def _dimensions(op: Conv | ConvTranspose) -> str | None:
    if len(op.geometry) in _FORWARD:
        return None
    return f"torch has no convolution over {len(op.geometry)} spatial dimensions"


def _reach(window: Window) -> int:
    """Positions from the first to the last tap of a window, both included."""
    return window.dilation * (window.taps - 1) + 1


def _unread(window: Window) -> int:
    """Padded positions after the last window: fewer than the stride."""
    covered = (window.outputs - 1) * window.stride + _reach(window)
    return window.size + window.pad_begin + window.pad_end - covered


def _strides(geometry: Geometry) -> tuple[int, ...]:
    return tuple(window.stride for window in geometry)


def _dilations(geometry: Geometry) -> tuple[int, ...]:
    return tuple(window.dilation for window in geometry)
