"""Pooling over windows: maximum, average, p-norm, in one to three dimensions.

Pads that torch's kernels refuse (unequal ends, more than half a window) are added explicitly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.convolutions import pad_widths, shared_pads
from lipcert.audit.lowering.dispatch import Tensors, constants, lower, obstacle
from lipcert.geometry import Geometry
from lipcert.ops.pooling import AveragePool, LpPool, MaxPool

_MAXIMUM: Final = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE: Final = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
_CONVOLUTION: Final = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


@lower.register
def _max_pool(op: MaxPool, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    x, pads = _padded(inputs[0], op.geometry, -math.inf)
    pooled: Tensor = _MAXIMUM[len(op.geometry)](
        x,
        _taps(op.geometry),
        stride=_strides(op.geometry),
        padding=pads,
        dilation=tuple(window.dilation for window in op.geometry),
    )
    return pooled


@lower.register
def _average_pool(op: AveragePool, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    means = _window_means(inputs[0], op.geometry)
    return means * tensors["correction"] if "correction" in tensors else means


@constants.register
def _average_constants(op: AveragePool, dtype: torch.dtype, device: torch.device) -> Tensors:
    """taps / divisor at every position, where that is not 1 everywhere."""
    correction = np.ones(())
    for window, counts in zip(op.geometry, op.divisors, strict=True):
        correction = np.multiply.outer(correction, window.taps / np.asarray(counts, np.float64))
    if np.all(correction == 1.0):
        return {}
    return {"correction": torch.tensor(correction, dtype=dtype, device=device)}


@lower.register
def _lp_pool(op: LpPool, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    taps = math.prod(_taps(op.geometry))
    sums = _window_means(torch.abs(x) if op.p == 1 else torch.abs(x) ** op.p, op.geometry) * taps
    if op.p == 1:
        return sums
    # the root has no finite slope at 0, the norm has: 0 is one of its derivatives there
    positive = sums > 0.0
    roots = torch.where(positive, sums, torch.ones_like(sums)) ** (1.0 / op.p)
    return torch.where(positive, roots, torch.zeros_like(roots))


@obstacle.register(MaxPool)
@obstacle.register(AveragePool)
@obstacle.register(LpPool)
def _dimensions(op: MaxPool | AveragePool | LpPool) -> str | None:
    if len(op.geometry) in _MAXIMUM:
        return None
    return f"torch has no pooling over {len(op.geometry)} spatial dimensions"


def _window_means(x: Tensor, geometry: Geometry) -> Tensor:
    """The sum of every window, padding counting 0, divided by its number of taps."""
    short = x.dtype.itemsize < 4  # torch averages volumes in whole precision only
    if any(window.dilation > 1 for window in geometry) or (short and len(geometry) == 3):
        return _convolved_means(x, geometry)
    x, pads = _padded(x, geometry, 0.0)
    average = _AVERAGE[len(geometry)]
    means: Tensor = average(x, _taps(geometry), stride=_strides(geometry), padding=pads)
    return means


def _convolved_means(x: Tensor, geometry: Geometry) -> Tensor:
    channels, taps = x.shape[1], _taps(geometry)
    kernel = x.new_full((channels, 1, *taps), 1.0 / math.prod(taps))
    return _CONVOLUTION[len(geometry)](
        functional.pad(x, pad_widths(geometry)),
        kernel,
        stride=_strides(geometry),
        dilation=tuple(window.dilation for window in geometry),
        groups=channels,
    )


def _padded(x: Tensor, geometry: Geometry, value: float) -> tuple[Tensor, tuple[int, ...]]:
    """x, and the pads left to torch's kernel, which takes at most half a window of them."""
    pads = shared_pads(geometry)
    if pads is not None and all(
        2 * pad <= window.taps for pad, window in zip(pads, geometry, strict=True)
    ):
        return x, pads
    return functional.pad(x, pad_widths(geometry), value=value), (0,) * len(geometry)


def _taps(geometry: Geometry) -> tuple[int, ...]:
    return tuple(window.taps for window in geometry)


def _strides(geometry: Geometry) -> tuple[int, ...]:
    return tuple(window.stride for window in geometry)
