"""Local response normalization: every entry divided by a power of the squares around it.

What enters: facts about x of shape [channels, ...]. What leaves: norm, box and Jacobian norm.
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

    @property
    def family(self) -> str:
        """Rule family."""
        return "lrn"

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
