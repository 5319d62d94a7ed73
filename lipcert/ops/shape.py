"""Rearrangements of one value: reshape, transpose, select, pad, expand, tile.

What enters: facts about x. What leaves: exact norms and boxes. Such a map repeats entries, so its
norm is the root of the largest number of times that one entry occurs in the output.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import aligned, broadcast_shape, root_of
from lipcert.upper import ZERO, FloatArray, Upper


class _Rearrangement(Op):
    """An op each of whose outputs is one entry of x, or a constant.

    Rule of the norms. J is a 0/1 matrix with at most one 1 per row, so JᵀJ is diagonal and holds
    how often each entry of x occurs: ‖J‖₂ = √(largest count), attained always.
    """

    __slots__ = ()

    @abstractmethod
    def repetitions(self, shape: Shape) -> int:
        """How often the most frequent entry of an input of this shape occurs in the output."""

    def constants_norm(self, shape: Shape) -> Upper:
        """Norm of the output entries that are constants instead of entries of x."""
        del shape
        return ZERO

    @abstractmethod
    def rearranged(self, array: FloatArray, first: int) -> FloatArray:
        """The op on an array whose axes before `first` are not touched."""

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        return self.rearranged(x, 1)


@final
@dataclass(frozen=True, slots=True)
class Reshape(_Rearrangement):
    """The same entries in row-major order under another shape (also Flatten, Squeeze, …)."""

    shape: Shape

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Reshape"

    @property
    def family(self) -> str:
        """Rule family."""
        return "reshape"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The target shape, which must have as many entries."""
        (shape,) = inputs
        if math.prod(shape) != math.prod(self.shape):
            raise ValueError(f"{shape} cannot be reshaped to {self.shape}")
        return self.shape

    def repetitions(self, shape: Shape) -> int:
        """Every entry once."""
        del shape
        return 1

    def rearranged(self, array: FloatArray, first: int) -> FloatArray:
        """Row-major reshape behind the leading axes."""
        return array.reshape((*array.shape[:first], *self.shape))


@final
@dataclass(frozen=True, slots=True)
class Transpose(_Rearrangement):
    """Axes in another order: output axis i is input axis perm[i]."""

    perm: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.perm) != list(range(len(self.perm))):
            raise ValueError(f"{self.perm} is not a permutation of axes")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Transpose"

    @property
    def family(self) -> str:
        """Rule family."""
        return "transpose"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The lengths in the new order."""
        (shape,) = inputs
        if len(shape) != len(self.perm):
            raise ValueError(f"permutation {self.perm} does not fit shape {shape}")
        return tuple(shape[axis] for axis in self.perm)

    def repetitions(self, shape: Shape) -> int:
        """Every entry once."""
        del shape
        return 1

    def rearranged(self, array: FloatArray, first: int) -> FloatArray:
        """Transpose behind the leading axes."""
        return array.transpose(*range(first), *(first + axis for axis in self.perm))


@final
@dataclass(frozen=True, slots=True)
class Select(_Rearrangement):
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

    @property
    def family(self) -> str:
        """Rule family."""
        return "select"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """As many entries along the axis as there are indices."""
        (shape,) = inputs
        if self.axis >= len(shape) or max(self.indices, default=-1) >= shape[self.axis]:
            raise ValueError(f"axis {self.axis} of shape {shape} does not hold every index")
        return (*shape[: self.axis], len(self.indices), *shape[self.axis + 1 :])

    def repetitions(self, shape: Shape) -> int:
        """How often the most frequent index is listed."""
        del shape
        return max(Counter(self.indices).values(), default=0)

    def rearranged(self, array: FloatArray, first: int) -> FloatArray:
        """Take along the axis."""
        return np.take(array, np.array(self.indices, dtype=np.intp), axis=first + self.axis)


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
class Pad(_Rearrangement):
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

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Pad"

    @property
    def family(self) -> str:
        """Rule family."""
        return "pad"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Each axis grows by its two pads."""
        (shape,) = inputs
        if len(shape) != len(self.begin):
            raise ValueError(f"pads {self.begin}, {self.end} do not fit shape {shape}")
        axes = zip(self.begin, shape, self.end, strict=True)
        return tuple(begin + length + end for begin, length, end in axes)

    def repetitions(self, shape: Shape) -> int:
        """Product over the axes of the largest count on that axis.

        Proof: the index map is a product of maps of single axes, and so are the counts.
        """
        return math.prod(self._axis_count(axis, length) for axis, length in enumerate(shape))

    def _axis_count(self, axis: int, length: int) -> int:
        if self.mode is PadMode.CONSTANT or length == 0:
            return 1
        pads = (self.begin[axis], self.end[axis])
        sources = np.pad(np.arange(length), pads, mode=self.mode.value)
        return int(np.max(np.bincount(sources)))

    def constants_norm(self, shape: Shape) -> Upper:
        """√n·|value| for n padded entries."""
        if self.mode is not PadMode.CONSTANT:
            return ZERO
        added = math.prod(self.output_shape([shape])) - math.prod(shape)
        return root_of(added) * Upper(abs(self.value))

    def rearranged(self, array: FloatArray, first: int) -> FloatArray:
        """Pad behind the leading axes."""
        if not self.begin:  # numpy takes no empty list of widths
            return array
        widths = [(0, 0)] * first + list(zip(self.begin, self.end, strict=True))
        if self.mode is PadMode.CONSTANT:
            return np.pad(array, widths, mode="constant", constant_values=self.value)
        return np.pad(array, widths, mode=self.mode.value)


@final
@dataclass(frozen=True, slots=True)
class Expand(_Rearrangement):
    """Broadcast to `shape`, the full shape of the output."""

    shape: Shape

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Expand"

    @property
    def family(self) -> str:
        """Rule family."""
        return "expand"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The target shape."""
        (shape,) = inputs
        if broadcast_shape([shape, self.shape]) != self.shape:
            raise ValueError(f"{shape} does not broadcast to {self.shape}")
        return self.shape

    def repetitions(self, shape: Shape) -> int:
        """Every entry equally often."""
        return math.prod(self.shape) // max(math.prod(shape), 1)

    def rearranged(self, array: FloatArray, first: int) -> FloatArray:
        """Broadcast behind the leading axes."""
        if first:
            array = aligned(array, len(self.shape))
        return np.broadcast_to(array, (*array.shape[:first], *self.shape))


@final
@dataclass(frozen=True, slots=True)
class Tile(_Rearrangement):
    """The whole value repeated along each axis."""

    repeats: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.repeats, default=1) < 1:
            raise ValueError(f"repeats must be positive: {self.repeats}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Tile"

    @property
    def family(self) -> str:
        """Rule family."""
        return "tile"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Each length times its repeats."""
        (shape,) = inputs
        if len(shape) != len(self.repeats):
            raise ValueError(f"repeats {self.repeats} do not fit shape {shape}")
        return tuple(n * r for n, r in zip(shape, self.repeats, strict=True))

    def repetitions(self, shape: Shape) -> int:
        """Every entry equally often."""
        del shape
        return math.prod(self.repeats)

    def rearranged(self, array: FloatArray, first: int) -> FloatArray:
        """Tile behind the leading axes."""
        return np.tile(array, (*[1] * first, *self.repeats))
