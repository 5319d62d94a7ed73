"""Normalisation layers: by stored statistics (BatchNorm), of an example by blocks, by neighbours.

LayerNorm, GroupNorm and RmsNorm all cut the value into blocks of equal size, normalise each one,
then scale and shift.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.operand import Operand
from lipcert.ops.base import Op, aligned
from lipcert.upper import FloatArray


def _require_epsilon(epsilon: float) -> None:
    if not (math.isfinite(epsilon) and epsilon >= 0.0):
        raise ValueError(f"epsilon must be a finite number >= 0, not {epsilon}")


@final
@dataclass(frozen=True, slots=True, eq=False)
class BatchNorm(Op):
    """y_c = scale_c·(x_c − mean_c)/√(variance_c + epsilon) + bias_c on [channels, ...].

    Mean and variance are statistics stored in the file, not parameters.
    """

    mean: Operand
    variance: Operand
    epsilon: float
    scale: Operand
    bias: Operand

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon)
        shapes = {op.shape for op in (self.mean, self.variance, self.scale, self.bias)}
        if len(shapes) != 1 or len(self.scale.shape) != 1:
            raise ValueError(f"statistics, scale and bias need one [channels] shape, not {shapes}")
        if np.any(self.variance.array < 0.0) or np.any(self.variance.array + self.epsilon <= 0.0):
            raise ValueError("a variance is negative, or zero without epsilon")
        with np.errstate(divide="ignore"):
            inverse = 1.0 / np.sqrt(self.variance.array + self.epsilon)
        if not np.all(np.isfinite(inverse)):
            raise ValueError("a variance plus epsilon is too small to divide by")

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
        rank = x.ndim - 1
        mean, variance, scale, bias = (
            _per_channel(operand.array, rank)
            for operand in (self.mean, self.variance, self.scale, self.bias)
        )
        return scale * (x - mean) / np.sqrt(variance + self.epsilon) + bias


def _per_channel(array: FloatArray, rank: int) -> FloatArray:
    return array.reshape(-1, *[1] * (rank - 1))


class _BlockNorm(Op):
    """y = scale·x̂ + bias, x̂ normalised block by block."""

    __slots__ = ()
    epsilon: float
    scale: Operand | None

    @property
    def _shift(self) -> Operand | None:
        return None

    @abstractmethod
    def _block_size(self, shape: Shape) -> int:
        """Entries that are normalised together."""

    @abstractmethod
    def _placed(self, operand: Shape, shape: Shape) -> Shape:
        """The operand's shape with unit axes, so that it broadcasts to the value."""

    def operands(self) -> Mapping[str, Operand]:
        """Scale and bias, where there are any."""
        slots = {"scale": self.scale, "bias": self._shift}
        return {slot: operand for slot, operand in slots.items() if operand is not None}

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input, to which scale and bias must broadcast."""
        (shape,) = inputs
        self._block_size(shape)
        for slot, operand in self.operands().items():
            if np.broadcast_shapes(self._placed(operand.shape, shape), shape) != shape:
                raise ValueError(f"{slot} {operand.shape} does not fit input {shape}")
        return shape

    def _scaled(self, normalised: FloatArray) -> FloatArray:
        """Scale and shift an array [examples, *shape]."""
        shape = normalised.shape[1:]
        for operand, apply in ((self.scale, np.multiply), (self._shift, np.add)):
            if operand is not None:
                array = operand.array.reshape(self._placed(operand.shape, shape))
                normalised = apply(normalised, aligned(array[np.newaxis], len(shape)))
        return normalised


class _TrailingNorm(_BlockNorm):
    """Blocks along the trailing axes; scale and bias broadcast from the right."""

    __slots__ = ()
    axes: int

    def _block_size(self, shape: Shape) -> int:
        if not 1 <= self.axes <= len(shape) or 0 in shape:
            raise ValueError(f"cannot normalise {self.axes} trailing axes of shape {shape}")
        return math.prod(shape[-self.axes :])

    def _placed(self, operand: Shape, shape: Shape) -> Shape:
        return (*[1] * (len(shape) - len(operand)), *operand)

    def _trailing(self, x: FloatArray) -> tuple[int, ...]:
        return tuple(range(x.ndim - self.axes, x.ndim))


@final
@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm(_TrailingNorm):
    """Mean removed and variance normalised over the `axes` trailing axes, per position."""

    axes: int
    epsilon: float
    scale: Operand | None = None
    bias: Operand | None = None

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon)

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "LayerNormalization"

    @property
    def _shift(self) -> Operand | None:
        return self.bias

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Normalise, scale, shift."""
        (x,) = inputs
        axes = self._trailing(x)
        centred = x - np.mean(x, axis=axes, keepdims=True)
        variance = np.mean(centred**2, axis=axes, keepdims=True)
        return self._scaled(centred / np.sqrt(variance + self.epsilon))


@final
@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm(_TrailingNorm):
    """Mean square normalised over the `axes` trailing axes, per position."""

    axes: int
    epsilon: float
    scale: Operand | None = None

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon)

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "RMSNormalization"

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Normalise and scale."""
        (x,) = inputs
        square = np.mean(x**2, axis=self._trailing(x), keepdims=True)
        return self._scaled(x / np.sqrt(square + self.epsilon))


@final
@dataclass(frozen=True, slots=True, eq=False)
class GroupNorm(_BlockNorm):
    """[channels, ...] normalised in `groups` groups of channels; scale and bias per channel.

    As many groups as channels make an InstanceNormalization.
    """

    groups: int
    epsilon: float
    scale: Operand | None = None
    bias: Operand | None = None

    def __post_init__(self) -> None:
        _require_epsilon(self.epsilon)
        if self.groups < 1:
            raise ValueError(f"the number of groups must be positive, not {self.groups}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "GroupNormalization"

    @property
    def _shift(self) -> Operand | None:
        return self.bias

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Normalise, scale, shift."""
        (x,) = inputs
        grouped = x.reshape(len(x), self.groups, -1)
        centred = grouped - np.mean(grouped, axis=-1, keepdims=True)
        variance = np.mean(centred**2, axis=-1, keepdims=True)
        return self._scaled((centred / np.sqrt(variance + self.epsilon)).reshape(x.shape))

    def _block_size(self, shape: Shape) -> int:
        if not shape or 0 in shape or shape[0] % self.groups:
            raise ValueError(f"{self.groups} groups do not divide the channels of {shape}")
        return math.prod(shape) // self.groups

    def _placed(self, operand: Shape, shape: Shape) -> Shape:
        if operand != shape[:1]:
            raise ValueError(f"scale and bias need shape {shape[:1]}, not {operand}")
        return (*operand, *[1] * (len(shape) - 1))


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
