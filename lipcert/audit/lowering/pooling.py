"""Pooling over windows: maximum, average, p-norm, in one to three dimensions.

Pads that torch's kernels refuse (unequal ends, more than half a window) are added explicitly.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.convolutions import pad_widths, shared_pads
from lipcert.audit.lowering.signature import Function
from lipcert.core.program import AveragePool, FloatArray, LpPool, MaxPool, Window
from lipcert.graph.geometry import Geometry

_MAXIMUM: Final = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE: Final = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
_CONVOLUTION: Final = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def pool(op: MaxPool | AveragePool | LpPool, geometry: Geometry, like: Tensor) -> Function:
    """The step in torch."""
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


def _maximum(x: Tensor, window: Window, geometry: Geometry) -> Tensor:
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
    """Taps over positions inside the input, for every window; None where that is always 1."""
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


def _window_means(x: Tensor, window: Window, geometry: Geometry) -> Tensor:
    """The sum of every window, padding counting 0, divided by its number of taps."""
    short = x.dtype.itemsize < 4  # torch averages volumes in whole precision only
    if max(window.dilations) > 1 or (short and len(geometry) == 3):
        return _convolved_means(x, window, geometry)
    x, pads = _padded(x, geometry, 0.0)
    average = _AVERAGE[len(geometry)]
    means: Tensor = average(x, window.taps, stride=window.strides, padding=pads)
    return means


def _convolved_means(x: Tensor, window: Window, geometry: Geometry) -> Tensor:
    channels = x.shape[1]
    kernel = x.new_full((channels, 1, *window.taps), 1.0 / math.prod(window.taps))
    return _CONVOLUTION[len(geometry)](
        functional.pad(x, pad_widths(geometry)),
        kernel,
        stride=window.strides,
        dilation=window.dilations,
        groups=channels,
    )


def _padded(x: Tensor, geometry: Geometry, value: float) -> tuple[Tensor, tuple[int, ...]]:
    """x, and the pads left to torch's kernel.

    It takes at most half a window of them, and some want no window to be wider than x.
    """
    pads = shared_pads(geometry)
    if pads is not None and all(
        2 * pad <= window.taps <= window.size for pad, window in zip(pads, geometry, strict=True)
    ):
        return x, pads
    return functional.pad(x, pad_widths(geometry), value=value), (0,) * len(geometry)
