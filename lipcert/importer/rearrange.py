"""ONNX ops that only rearrange entries, as numpy functions; they serve constants and views alike.

What enters: a raw node and its constant control inputs (shapes, axes, indices). What leaves: a
function that may be applied to numbers or to indices. ValueError where the node is not sound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from lipcert.importer.limits import MAX_CONSTANT_ELEMENTS
from lipcert.importer.raw import Array, RawNode

Control = Sequence[Array | None]
"""the constant inputs after the first, None where left out"""
Rearrange = Callable[[Array], Array]
MakeRearranger = Callable[[RawNode, Control], Rearrange]


def rearranger(node: RawNode, control: Control) -> Rearrange:
    """The numpy function of a node in `REARRANGERS` with one output."""
    return REARRANGERS[node.op_type](node, control)


def axes_of(node: RawNode, control: Control, position: int = 0) -> tuple[int, ...] | None:
    """The `axes` of a node, from its attribute or from a control input."""
    axes = node.integers("axes")
    if axes is None and position < len(control):
        found = control[position]
        axes = None if found is None else tuple(int(axis) for axis in found.reshape(-1))
    return axes


def slices_of(node: RawNode, control: Control, rank: int) -> tuple[slice, ...]:
    """The python slices of a Slice node, one per axis."""
    if node.since_version < 10:
        starts, ends = node.integers("starts") or (), node.integers("ends") or ()
        axes = node.integers("axes") or tuple(range(len(starts)))
        steps: tuple[int, ...] = (1,) * len(starts)
    else:
        parts = [None if part is None else part.reshape(-1).tolist() for part in control]
        parts += [None] * (4 - len(parts))
        starts, ends = tuple(parts[0] or ()), tuple(parts[1] or ())
        axes = tuple(range(len(starts))) if parts[2] is None else tuple(parts[2])
        steps = (1,) * len(starts) if parts[3] is None else tuple(parts[3])
    slices = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -rank <= axis < rank or step == 0:
            raise ValueError(f"axis {axis} or step {step} is out of range")
        backwards_to_start = step < 0 and end < -(2**31)
        slices[axis] = slice(start, None if backwards_to_start else end, step)
    return tuple(slices)


def split_sizes(node: RawNode, control: Control, size: int) -> tuple[int, ...]:
    """Sizes of the parts of a Split node along an axis of this size."""
    sizes = node.integers("split")
    if sizes is None and control and control[0] is not None:
        sizes = tuple(int(part) for part in control[0].reshape(-1))
    if sizes is None:
        parts = len(node.outputs)
        chunk = -(-size // parts)
        sizes = tuple(min(chunk, size - chunk * index) for index in range(parts))
    if sum(sizes) != size or min(sizes) < 0 or len(sizes) != len(node.outputs):
        raise ValueError(f"parts {sizes} do not add up to {size}")
    return sizes


def _required(control: Control, position: int) -> Array:
    found = control[position] if position < len(control) else None
    if found is None:
        raise ValueError("a required input is missing")
    return found


def _reshape(node: RawNode, control: Control) -> Rearrange:
    shape = node.integers("shape")
    if shape is None:
        shape = tuple(int(item) for item in _required(control, 0).reshape(-1))
    keeps_zero = node.integer("allowzero", 0) == 1

    def apply(array: Array) -> Array:
        target = [
            array.shape[axis] if item == 0 and not keeps_zero else item
            for axis, item in enumerate(shape)
        ]
        return array.reshape(target)

    return apply


def _flatten(node: RawNode, control: Control) -> Rearrange:
    del control
    axis = node.integer("axis", 1)

    def apply(array: Array) -> Array:
        at = axis + array.ndim if axis < 0 else axis
        return array.reshape(math.prod(array.shape[:at]), -1)

    return apply


def _squeeze(node: RawNode, control: Control) -> Rearrange:
    axes = axes_of(node, control)
    return lambda array: np.squeeze(array, axis=axes)


def _unsqueeze(node: RawNode, control: Control) -> Rearrange:
    axes = axes_of(node, control)
    if axes is None:
        raise ValueError("Unsqueeze needs axes")
    return lambda array: np.expand_dims(array, axes)


def _transpose(node: RawNode, control: Control) -> Rearrange:
    del control
    perm = node.integers("perm")
    return lambda array: np.transpose(array, perm)


def _slice(node: RawNode, control: Control) -> Rearrange:
    return lambda array: array[slices_of(node, control, array.ndim)]


def _gather(node: RawNode, control: Control) -> Rearrange:
    indices = _required(control, 0).astype(np.int64)
    axis = node.integer("axis", 0)

    def apply(array: Array) -> Array:
        _check_size(array.size * max(indices.size, 1))
        return np.take(array, indices, axis=axis)

    return apply


def _expand(node: RawNode, control: Control) -> Rearrange:
    del node
    shape = tuple(int(item) for item in _required(control, 0).reshape(-1))

    def apply(array: Array) -> Array:
        target = np.broadcast_shapes(array.shape, shape)
        _check_size(math.prod(target))
        return np.broadcast_to(array, target)

    return apply


def _tile(node: RawNode, control: Control) -> Rearrange:
    del node
    repeats = tuple(int(item) for item in _required(control, 0).reshape(-1))

    def apply(array: Array) -> Array:
        _check_size(array.size * math.prod(repeats))
        return np.tile(array, repeats)

    return apply


def _identity(node: RawNode, control: Control) -> Rearrange:
    del node, control
    return lambda array: array


def _check_size(size: int) -> None:
    if size > MAX_CONSTANT_ELEMENTS:
        raise ValueError(f"a constant would have more than {MAX_CONSTANT_ELEMENTS} elements")


REARRANGERS: Final[Mapping[str, MakeRearranger]] = MappingProxyType(
    {
        "Reshape": _reshape,
        "Flatten": _flatten,
        "Squeeze": _squeeze,
        "Unsqueeze": _unsqueeze,
        "Transpose": _transpose,
        "Slice": _slice,
        "Gather": _gather,
        "Expand": _expand,
        "Tile": _tile,
        "Identity": _identity,
        "Dropout": _identity,
    }
)
