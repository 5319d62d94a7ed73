"""Normalisation: by mean and variance over axes, by stored numbers, by neighbouring channels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Normalize(Op):
    """y = (x − m)/√(mean of (x − m)² + epsilon) over axes; m the mean, or 0 if not centred."""

    axes: Shape
    epsilon: float
    centred: bool

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0.0):
            raise ValueError(f"epsilon must be a finite number >= 0, not {self.epsilon}")

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input."""
        (shape,) = inputs
        if not self.axes or not set(self.axes) <= set(range(len(shape))):
            raise ValueError(f"cannot normalise over axes {self.axes} of shape {shape}")
        return shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        axes = tuple(axis + 1 for axis in self.axes)
        x = x - np.mean(x, axis=axes, keepdims=True) if self.centred else x
        with np.errstate(all="ignore"):
            root = np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + self.epsilon)
            result: FloatArray = x / root
        return result


@final
@dataclass(frozen=True, slots=True, eq=False)
class BatchNorm(Op):
    """y_c = scale_c·(x_c − mean_c)·inverse_c + bias_c on [channels, ...].

    mean, inverse = 1/√(variance + ε): statistics stored in the file, not parameters. variance: what
    the file holds, where that is known.
    """

    mean: FloatArray
    inverse: FloatArray
    scale: Operand
    bias: Operand
    variance: FloatArray | None = None

    def __post_init__(self) -> None:
        shapes = {part.shape for part in (self.mean, self.inverse, self.scale, self.bias)}
        if len(shapes) != 1 or len(self.scale.shape) != 1:
            raise ValueError(f"statistics, scale and bias need one [channels] shape, not {shapes}")
        if not (np.isfinite(self.mean).all() and (self.inverse > 0.0).all()):
            raise ValueError("a mean is not finite, or a deviation is not positive")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "BatchNormalization"

    def operands(self) -> Mapping[str, Operand]:
        """Scale and bias."""
        return {"scale": self.scale, "bias": self.bias}

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input, whose first axis holds the channels."""
        (shape,) = inputs
        if shape[:1] != self.scale.shape:
            raise ValueError(f"input {shape} does not have {self.scale.shape[0]} channels")
        return shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Normalise, scale, shift."""
        (x,) = inputs
        mean, inverse, scale, bias = (
            array.reshape(-1, *[1] * (x.ndim - 2))
            for array in (self.mean, self.inverse, self.scale.array, self.bias.array)
        )
        result: FloatArray = scale * (x - mean) * inverse + bias
        return result


@final
@dataclass(frozen=True, slots=True)
class Lrn(Op):
    """y_c = x_c / s_c^power, s_c = floor + (strength/size)·Σ x² over `size` channels around c."""

    size: int
    strength: float
    power: float
    floor: float

    def __post_init__(self) -> None:
        numbers = (self.strength, self.power, self.floor)
        if self.size < 1 or not all(map(math.isfinite, numbers)):
            raise ValueError(f"size, alpha, beta and bias of LRN are out of range: {self}")
        if self.strength < 0.0 or self.power < 0.0 or self.floor <= 0.0:
            raise ValueError(f"LRN needs alpha >= 0, beta >= 0 and bias > 0: {self}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "LRN"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input, which needs a channel axis."""
        (shape,) = inputs
        if not shape:
            raise ValueError("LRN needs an axis of channels")
        return shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        before, channels = (self.size - 1) // 2, x.shape[1]
        squares = np.zeros_like(x)
        for channel in range(channels):
            around = slice(max(0, channel - before), channel - before + self.size)
            squares[:, channel] = np.sum(x[:, around] ** 2, axis=1)
        result: FloatArray = x / (self.floor + self.strength / self.size * squares) ** self.power
        return result
