"""Rearrangements of one value: reshape, transpose, select, pad, expand, tile, sort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op, aligned, broadcast_shape
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Reshape(Op):
    """The same entries in row-major order under another shape (also Flatten, Squeeze, …)."""

    shape: Shape

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The target shape, which must have as many entries."""
        (shape,) = inputs
        if math.prod(shape) != math.prod(self.shape):
            raise ValueError(f"{shape} cannot be reshaped to {self.shape}")
        return self.shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        return x.reshape(len(x), *self.shape)


@final
@dataclass(frozen=True, slots=True)
class Transpose(Op):
    """Axes in another order: output axis i is input axis perm[i]."""

    perm: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.perm) != list(range(len(self.perm))):
            raise ValueError(f"{self.perm} is not a permutation of axes")

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The lengths in the new order."""
        (shape,) = inputs
        if len(shape) != len(self.perm):
            raise ValueError(f"permutation {self.perm} does not fit shape {shape}")
        return tuple(shape[axis] for axis in self.perm)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        return x.transpose(0, *(1 + axis for axis in self.perm))


@final
@dataclass(frozen=True, slots=True)
class Select(Op):
    """Entries `indices` along one axis (Slice, Gather, Split, nearest-neighbour Resize)."""

    axis: int
    indices: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.axis < 0 or min(self.indices, default=0) < 0:
            raise ValueError("axis and indices of a selection are counted from the front")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Slice"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """As many entries along the axis as there are indices."""
        (shape,) = inputs
        if self.axis >= len(shape) or max(self.indices, default=-1) >= shape[self.axis]:
            raise ValueError(f"axis {self.axis} of shape {shape} does not hold every index")
        return (*shape[: self.axis], len(self.indices), *shape[self.axis + 1 :])

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        return np.take(x, np.array(self.indices, dtype=np.intp), axis=1 + self.axis)


class PadMode(Enum):
    """What stands in the padding."""

    CONSTANT = "constant"
    """one number"""
    REFLECT = "reflect"
    """mirrored without repeating the border"""
    EDGE = "edge"
    """the border, repeated"""
    WRAP = "wrap"
    """the opposite side"""


@final
@dataclass(frozen=True, slots=True)
class Pad(Op):
    """Entries added before and after each axis of the example."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    mode: PadMode = PadMode.CONSTANT
    value: float = 0.0

    def __post_init__(self) -> None:
        if len(self.begin) != len(self.end) or min((*self.begin, *self.end), default=0) < 0:
            raise ValueError(f"pads must be two lists of non-negative lengths: {self}")
        if not math.isfinite(self.value):
            raise ValueError(f"the padding value must be finite, not {self.value}")

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Each axis grows by its two pads."""
        (shape,) = inputs
        if len(shape) != len(self.begin):
            raise ValueError(f"pads {self.begin}, {self.end} do not fit shape {shape}")
        axes = zip(self.begin, shape, self.end, strict=True)
        return tuple(begin + length + end for begin, length, end in axes)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        widths = [(0, 0), *zip(self.begin, self.end, strict=True)]
        if self.mode is PadMode.CONSTANT:
            return np.pad(x, widths, mode="constant", constant_values=self.value)
        return np.pad(x, widths, mode=self.mode.value)


@final
@dataclass(frozen=True, slots=True)
class Expand(Op):
    """Broadcast to `shape`, the full shape of the output."""

    shape: Shape

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The target shape."""
        (shape,) = inputs
        if broadcast_shape([shape, self.shape]) != self.shape:
            raise ValueError(f"{shape} does not broadcast to {self.shape}")
        return self.shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        return np.broadcast_to(aligned(x, len(self.shape)), (len(x), *self.shape))


@final
@dataclass(frozen=True, slots=True)
class Tile(Op):
    """The whole value repeated along each axis."""

    repeats: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.repeats, default=1) < 1:
            raise ValueError(f"repeats must be positive: {self.repeats}")

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Each length times its repeats."""
        (shape,) = inputs
        if len(shape) != len(self.repeats):
            raise ValueError(f"repeats {self.repeats} do not fit shape {shape}")
        return tuple(n * r for n, r in zip(shape, self.repeats, strict=True))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        return np.tile(x, (1, *self.repeats))


@final
@dataclass(frozen=True, slots=True)
class Sort(Op):
    """All entries along one axis in ascending or descending order (TopK of the whole axis)."""

    axis: int
    descending: bool = False

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError("the axis of a sort is counted from the front")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "TopK"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The shape of x."""
        (shape,) = inputs
        if self.axis >= len(shape):
            raise ValueError(f"axis {self.axis} does not exist in shape {shape}")
        return shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        ascending = np.sort(x, axis=self.axis + 1)
        return np.flip(ascending, axis=self.axis + 1) if self.descending else ascending
