"""Sums and means over axes, and what remains of x without its mean.

What enters: facts about x. What leaves: norm and box of the result, and the exact norm of the map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


class _Reduction(Op):
    """Σ over the axes, times a weight that depends on their length only."""

    __slots__ = ()
    axes: tuple[int, ...]
    keepdims: bool

    @property
    def family(self) -> str:
        """Rule family."""
        return "reduce"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Without the axes, or with length 1 there."""
        (shape,) = inputs
        axes = self._axes(len(shape))
        kept = [1 if axis in axes else length for axis, length in enumerate(shape)]
        if self.keepdims:
            return tuple(kept)
        return tuple(length for axis, length in enumerate(kept) if axis not in axes)

    def _count(self, shape: Shape) -> int:
        return math.prod(shape[axis] for axis in self._axes(len(shape)))

    def _axes(self, rank: int) -> tuple[int, ...]:
        axes = tuple(axis + rank if axis < 0 else axis for axis in self.axes)
        if len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
            raise ValueError(f"axes {self.axes} do not fit a value with {rank} axes")
        return axes


@final
@dataclass(frozen=True, slots=True)
class ReduceSum(_Reduction):
    """Sum over axes; axes count from the first per-example axis (negative: from the last)."""

    axes: tuple[int, ...]
    keepdims: bool = False

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "ReduceSum"

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The sum."""
        (x,) = inputs
        result: FloatArray = np.sum(
            x, axis=_batched(self._axes(x.ndim - 1)), keepdims=self.keepdims
        )
        return result


@final
@dataclass(frozen=True, slots=True)
class ReduceMean(_Reduction):
    """Mean over axes; axes count from the first per-example axis (negative: from the last)."""

    axes: tuple[int, ...]
    keepdims: bool = False

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "ReduceMean"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """As for the sum; a mean of no entries is not a number."""
        if self._count(inputs[0]) == 0:
            raise ValueError(f"the mean over axes {self.axes} of shape {inputs[0]} has no terms")
        return _Reduction.output_shape(self, inputs)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The mean."""
        (x,) = inputs
        result: FloatArray = np.mean(
            x, axis=_batched(self._axes(x.ndim - 1)), keepdims=self.keepdims
        )
        return result


@final
@dataclass(frozen=True, slots=True)
class Centre(Op):
    """y = x − mean(x) over axes, counted from the first of the example, for every slice."""

    axes: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Own name: exporters write a mean and a difference."""
        return "Centre"

    @property
    def family(self) -> str:
        """Rule family."""
        return "centre"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Unchanged; a mean of no entries is not a number."""
        (shape,) = inputs
        within = all(0 <= axis < len(shape) for axis in self.axes)
        if not self.axes or len(set(self.axes)) != len(self.axes) or not within:
            raise ValueError(f"axes {self.axes} do not fit shape {shape}")
        if self._count(shape) == 0:
            raise ValueError(f"the mean over axes {self.axes} of shape {shape} has no terms")
        return shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """x less its mean."""
        (x,) = inputs
        centred: FloatArray = x - np.mean(x, axis=_batched(self.axes), keepdims=True)
        return centred

    def _count(self, shape: Shape) -> int:
        return math.prod(shape[axis] for axis in self.axes)


def _batched(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis + 1 for axis in axes)
