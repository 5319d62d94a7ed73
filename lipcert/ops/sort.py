"""Sort: entries along an axis by size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Sort(Op):
    """All entries along one axis in ascending order (TopK of the whole axis)."""

    axis: int

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
        return np.sort(x, axis=self.axis + 1)
