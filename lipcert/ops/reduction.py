"""Reductions over axes, and what x becomes by the mean or the norm of its slices."""

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
    """Treats every slice along the axes alike, which are counted from the front of the example."""

    __slots__ = ()
    axes: tuple[int, ...]

    def _require_axes(self, shape: Shape) -> None:
        within = all(0 <= axis < len(shape) for axis in self.axes)
        if len(set(self.axes)) != len(self.axes) or not within:
            raise ValueError(f"axes {self.axes} do not fit shape {shape}")

    def _require_terms(self, shape: Shape) -> None:
        if math.prod(shape[axis] for axis in self.axes) == 0:
            raise ValueError(f"the mean over axes {self.axes} of shape {shape} has no terms")

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        return self._value(x, tuple(axis + 1 for axis in self.axes))

    @abstractmethod
    def _value(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        """The op on an array of examples, over these of its axes."""


class _Reduction(_OverAxes):
    """Every slice becomes one number, its axes are left with the length 1."""

    __slots__ = ()

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """With length 1 along the axes."""
        (shape,) = inputs
        self._require_axes(shape)
        return tuple(1 if axis in self.axes else length for axis, length in enumerate(shape))


class _Unreduced(_OverAxes):
    """Every slice keeps its shape."""

    __slots__ = ()

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Unchanged."""
        (shape,) = inputs
        self._require_axes(shape)
        if not self.axes:
            raise ValueError(f"no axes of shape {shape} are named")
        return shape


@final
@dataclass(frozen=True, slots=True)
class ReduceSum(_Reduction):
    """Sum over axes."""

    axes: tuple[int, ...]

    def _value(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        result: FloatArray = np.sum(array, axis=axes, keepdims=True)
        return result


@final
@dataclass(frozen=True, slots=True)
class ReduceMean(_Reduction):
    """Mean over axes."""

    axes: tuple[int, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """As for the sum; a mean of no entries is not a number."""
        shape = _Reduction.output_shape(self, inputs)
        self._require_terms(inputs[0])
        return shape

    def _value(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        result: FloatArray = np.mean(array, axis=axes, keepdims=True)
        return result


@final
@dataclass(frozen=True, slots=True)
class ReduceNorm(_Reduction):
    """(Σ |x|^p + floor)^(1/p) over axes, p = 1 or 2."""

    p: int
    axes: tuple[int, ...]
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.p not in {1, 2}:
            raise ValueError(f"only the 1-norm and the 2-norm are reduced to, not p = {self.p}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return f"ReduceL{self.p}"

    def _value(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        powers = np.abs(array) if self.p == 1 else array * array
        summed: FloatArray = np.sum(powers, axis=axes, keepdims=True) + self.floor
        return summed if self.p == 1 else np.sqrt(summed)


@final
@dataclass(frozen=True, slots=True)
class ReduceMax(_Reduction):
    """Maximum (or minimum) over axes."""

    axes: tuple[int, ...]
    minimum: bool

    def _value(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        extreme = np.min if self.minimum else np.max
        result: FloatArray = extreme(array, axis=axes, keepdims=True)
        return result


@final
@dataclass(frozen=True, slots=True)
class ReduceLogSumExp(_Reduction):
    """ln Σ e^x over axes."""

    axes: tuple[int, ...]

    def _value(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        peak = np.max(array, axis=axes, keepdims=True)
        powers = np.sum(np.exp(array - peak), axis=axes, keepdims=True)
        result: FloatArray = np.log(powers) + peak
        return result


@final
@dataclass(frozen=True, slots=True)
class Centre(_Unreduced):
    """y = x − mean(x) over axes: exporters write a mean and a difference."""

    axes: tuple[int, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Unchanged; a mean of no entries is not a number."""
        shape = _Unreduced.output_shape(self, inputs)
        self._require_terms(shape)
        return shape

    def _value(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        centred: FloatArray = array - np.mean(array, axis=axes, keepdims=True)
        return centred


@final
@dataclass(frozen=True, slots=True)
class DivideByNorm(_Unreduced):
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

    def _value(self, array: FloatArray, axes: tuple[int, ...]) -> FloatArray:
        norms = np.sqrt(np.sum(array * array, axis=axes, keepdims=True))
        divided: FloatArray = array / np.maximum(norms / self.radius, self.floor)
        return divided
