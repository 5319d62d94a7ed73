"""Convolutions, transposed convolutions, and pooling over windows, in one to three dimensions.

x is [examples, channels, *sizes], a kernel as in ONNX. Padding that torch's kernels cannot express
or refuse (unequal ends, more than half a window) is added, or cut away, explicitly.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lipcert.core import window_kinds
from lipcert.core.program import FloatArray
from lipcert.core.window_kinds import AveragePool, Conv, LpPool, MaxPool
from lipcert.graph.geometry import Geometry, Window
from lipcert.measure.lowering.functions import Function, Tensors

_FORWARD: Final = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: Final = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
RANKS: Final = frozenset(_FORWARD)
"""Numbers of axes for which torch has windows."""


def convolution(op: Conv, geometry: Geometry) -> Function:
    """Return the convolution in torch.

    geometry: of the windows, from x to y, or from y to x if the convolution is transposed.
    """
    return (_transposed if op.transposed else _forward)(op, geometry)


def shared_pads(geometry: Geometry) -> tuple[int, ...] | None:
    """Return one pad per dimension if equal padding at both ends gives the same windows; otherwise
    None."""
    pads = []
    for window in geometry:
        room = window.size + 2 * window.pad_begin - _reach(window)
        if room < 0 or room // window.stride + 1 != window.outputs:
            return None
        pads.append(window.pad_begin)
    return tuple(pads)


def pad_widths(geometry: Geometry) -> list[int]:
    """Return the pads in the order of `functional.pad`: last dimension first."""
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
    """Return the positions from the first to the last tap of a window, both included."""
    return window.dilation * (window.taps - 1) + 1


def _unread(window: Window) -> int:
    """Return the number of padded positions after the last window: fewer than the stride."""
    covered = (window.outputs - 1) * window.stride + _reach(window)
    return window.size + window.pad_begin + window.pad_end - covered


_MAXIMUM: Final = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE: Final = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def pool(op: MaxPool | AveragePool | LpPool, geometry: Geometry, like: Tensor) -> Function:
    """Return the pooling step in torch, by its kind."""
    match op:
        case MaxPool():
            return lambda x, _: _maximum(x[0], op.window, geometry)
        case LpPool():
            return lambda x, _: _power_sums(x[0], op, geometry)
    correction = None if op.counts_padding else _correction(geometry)
    if correction is None:
        return lambda x, _: _window_means(x[0], op.window, geometry)
    factor = torch.tensor(correction).to(like)
    return lambda x, _: _window_means(x[0], op.window, geometry) * factor


def _maximum(x: Tensor, window: window_kinds.Window, geometry: Geometry) -> Tensor:
    x, pads = _padded(x, geometry, -math.inf)
    pooled: Tensor = _MAXIMUM[len(geometry)](
        x,
        window.taps,
        stride=window.strides,
        padding=pads,
        dilation=window.dilations,
    )
    return pooled


def _correction(geometry: Geometry) -> FloatArray | None:
    """Return taps over positions inside the input, for every window; None if that is always 1."""
    correction = np.ones(())
    for window in geometry:
        inside = np.asarray(window.reads(), np.float64)
        correction = np.multiply.outer(correction, window.taps / inside)
    return None if np.all(correction == 1.0) else correction


def _power_sums(x: Tensor, op: LpPool, geometry: Geometry) -> Tensor:
    powers = torch.abs(x) if op.p == 1 else torch.abs(x) ** op.p
    sums = _window_means(powers, op.window, geometry) * math.prod(op.window.taps)
    if op.p == 1:
        return sums
    # the root has no finite slope at 0, the norm has: 0 is one of its derivatives there
    positive = sums > 0.0
    roots = torch.where(positive, sums, torch.ones_like(sums)) ** (1.0 / op.p)
    return torch.where(positive, roots, torch.zeros_like(roots))


def _window_means(x: Tensor, window: window_kinds.Window, geometry: Geometry) -> Tensor:
    """Return the sum of every window, padding counting as 0, divided by its number of taps."""
    short = x.dtype.itemsize < 4  # torch averages volumes in whole precision only
    if max(window.dilations) > 1 or (short and len(geometry) == 3):
        return _convolved_means(x, window, geometry)
    x, pads = _padded(x, geometry, 0.0)
    average = _AVERAGE[len(geometry)]
    means: Tensor = average(x, window.taps, stride=window.strides, padding=pads)
    return means


def _convolved_means(x: Tensor, window: window_kinds.Window, geometry: Geometry) -> Tensor:
    channels = x.shape[1]
    kernel = x.new_full((channels, 1, *window.taps), 1.0 / math.prod(window.taps))
    return _FORWARD[len(geometry)](
        functional.pad(x, pad_widths(geometry)),
        kernel,
        stride=window.strides,
        dilation=window.dilations,
        groups=channels,
    )


def _padded(x: Tensor, geometry: Geometry, value: float) -> tuple[Tensor, tuple[int, ...]]:
    """Return x, and the pads that torch's kernel adds.

    It accepts at most half a window of them, and some kernels want no window to be wider than x.
    """
    pads = shared_pads(geometry)
    if pads is not None and all(
        2 * pad <= window.taps <= window.size for pad, window in zip(pads, geometry, strict=True)
    ):
        return x, pads
    return functional.pad(x, pad_widths(geometry), value=value), (0,) * len(geometry)
