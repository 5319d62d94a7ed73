"""Squared norms of per-example gradients of the parameters of single ops, in plain float64.

What enters: the input of an op and the cotangent at its output, for a batch. What leaves: ‖∂loss/∂
operand‖² of each example, up to rounding; an operand that is not known here has none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lipcert.norms.geometry import Geometry
from lipcert.ops.affine import Scale, Shift
from lipcert.ops.base import Op
from lipcert.ops.conv import Conv, ConvTranspose
from lipcert.ops.linear import Dense
from lipcert.ops.normalization import BatchNorm
from lipcert.upper import FloatArray


def operand_squares(op: Op, x: FloatArray, g: FloatArray) -> Mapping[str, FloatArray]:
    """‖∂loss/∂operand‖² by slot, [examples] each."""
    match op:
        case Dense():
            left, right = g.reshape(len(g), -1, g.shape[-1]), x.reshape(len(x), -1, x.shape[-1])
            return {"weight": _product_squares(left, right), "bias": _squares(left.sum(axis=1))}
        case Conv():
            weight = _kernel_squares(g, x, op.geometry, op.groups)
            return {"weight": weight, "bias": _channel_squares(g)}
        case ConvTranspose():
            weight = _kernel_squares(x, g, op.geometry, op.groups)
            return {"weight": weight, "bias": _channel_squares(g)}
        case Scale():
            return {"scale": _squares(_shared(x * g, op.scale.shape))}
        case Shift():
            return {"bias": _squares(_shared(g, op.bias.shape))}
        case BatchNorm():
            per_channel = (-1, *[1] * (x.ndim - 2))
            deviation = np.sqrt(op.variance.array + op.epsilon).reshape(per_channel)
            normalised = (x - op.mean.array.reshape(per_channel)) / deviation
            return {"scale": _channel_squares(normalised * g), "bias": _channel_squares(g)}
        case _:
            return {}


def _squares(gradient: FloatArray) -> FloatArray:
    """‖·‖² of each example."""
    flat = gradient.reshape(len(gradient), -1)
    return np.asarray(np.einsum("ni,ni->n", flat, flat))


def _channel_squares(g: FloatArray) -> FloatArray:
    """‖Σ over the positions‖² for [examples, channels, *positions]."""
    return _squares(g.reshape(*g.shape[:2], -1).sum(axis=2))


def _product_squares(left: FloatArray, right: FloatArray) -> FloatArray:
    """‖Σ_p left_p ⊗ right_p‖² of each example, for [examples, positions, ·]."""
    if left.shape[1] == 1:
        return _squares(left) * _squares(right)
    return _squares(left.swapaxes(1, 2) @ right)


def _kernel_squares(g: FloatArray, x: FloatArray, geometry: Geometry, groups: int) -> FloatArray:
    """‖∂/∂kernel‖² where the windows of the geometry on x meet g, position by position."""
    pads = [(0, 0), (0, 0), *((w.pad_begin, w.pad_end) for w in geometry)]
    axes = tuple(range(2, x.ndim))
    reach = [w.dilation * (w.taps - 1) + 1 for w in geometry]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads), reach, axis=axes)
    steps = [slice(None, None, w.stride) for w in geometry]
    taps = [slice(None, None, w.dilation) for w in geometry]
    patches = windows[(slice(None), slice(None), *steps, *taps)]  # [n, channels, *positions, *taps]
    patches = np.moveaxis(patches, axes, range(1, 1 + len(axes)))
    count, positions = len(x), int(np.prod([w.outputs for w in geometry]))
    patches = patches.reshape(count, positions, groups, -1)
    left = g.reshape(count, groups, -1, positions)
    return sum(
        (_squares(left[:, i] @ patches[:, :, i]) for i in range(groups)), start=np.zeros(count)
    )


def _shared(gradient: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Summed over the axes along which an operand of this shape is broadcast."""
    added = gradient.ndim - 1 - len(shape)
    axes = [axis for axis, size in enumerate(shape, 1 + added) if size == 1]
    return np.asarray(gradient.sum(axis=(*range(1, 1 + added), *axes)))
