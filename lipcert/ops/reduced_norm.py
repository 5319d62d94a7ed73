"""Norms and log-sum-exp over axes: reductions that are not linear, and division by a norm.

What enters: facts about x. What leaves: norm and box of the result, and Jacobian norms.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


class _OverAxes(Op):
    """Reduces every slice along the axes, counted from the front, to one number."""

    __slots__ = ()
    axes: tuple[int, ...]
    keepdims: bool

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Without the axes, or with length 1 there."""
        (shape,) = inputs
        if len(set(self.axes)) != len(self.axes) or any(
            not 0 <= axis < len(shape) for axis in self.axes
        ):
            raise ValueError(f"axes {self.axes} do not fit shape {shape}")
        kept = [1 if axis in self.axes else length for axis, length in enumerate(shape)]
        if self.keepdims:
            return tuple(kept)
        return tuple(length for axis, length in enumerate(kept) if axis not in self.axes)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        return self._reduced(x, tuple(axis + 1 for axis in self.axes))

    @abstractmethod
    def _reduced(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray: ...


@final
@dataclass(frozen=True, slots=True)
class ReduceNorm(_OverAxes):
    """The 1-norm or 2-norm over axes."""

    p: int
    axes: tuple[int, ...]
    keepdims: bool = False

    def __post_init__(self) -> None:
        if self.p not in {1, 2}:
            raise ValueError(f"only the 1-norm and the 2-norm are reduced to, not p = {self.p}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return f"ReduceL{self.p}"

    @property
    def family(self) -> str:
        """Rule family."""
        return "reduce_norm"

    def _reduced(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        powers = np.abs(array) if self.p == 1 else array * array
        summed: FloatArray = np.sum(powers, axis=axes, keepdims=self.keepdims)
        return summed if self.p == 1 else np.sqrt(summed)


@final
@dataclass(frozen=True, slots=True)
class ReduceLogSumExp(_OverAxes):
    """ln Σ e^x over axes."""

    axes: tuple[int, ...]
    keepdims: bool = False

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "ReduceLogSumExp"

    @property
    def family(self) -> str:
        """Rule family."""
        return "log_sum_exp"

    def _reduced(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        peak = np.max(array, axis=axes, keepdims=True)
        powers = np.sum(np.exp(array - peak), axis=axes, keepdims=True)
        summed: FloatArray = np.log(powers) + peak
        return summed if self.keepdims else np.squeeze(summed, axis=axes)


@final
@dataclass(frozen=True, slots=True)
class DivideByNorm(Op):
    """y = x / max(‖x‖₂/radius, floor), the norm over axes, for every slice.

    floor = 1: a clip to norm radius. radius = 1: normalised, as torch's `normalize` does. radius =
    √n for n entries: division by their root mean square, but at least by floor.
    """

    axes: tuple[int, ...]
    radius: float
    floor: float

    def __post_init__(self) -> None:
        if not (0.0 < self.radius < math.inf and 0.0 < self.floor < math.inf):
            raise ValueError(f"radius {self.radius} and floor {self.floor} need to be positive")

    @property
    def kind(self) -> str:
        """ONNX name of the division without a floor."""
        return "LpNormalization"

    @property
    def family(self) -> str:
        """Rule family."""
        return "divide_by_norm"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Unchanged."""
        (shape,) = inputs
        within = all(0 <= axis < len(shape) for axis in self.axes)
        if not self.axes or len(set(self.axes)) != len(self.axes) or not within:
            raise ValueError(f"axes {self.axes} do not fit shape {shape}")
        return shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        axes = tuple(axis + 1 for axis in self.axes)
        norms = np.sqrt(np.sum(x * x, axis=axes, keepdims=True))
        divided: FloatArray = x / np.maximum(norms / self.radius, self.floor)
        return divided
