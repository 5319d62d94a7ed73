"""Sorting along an axis (TopK of the whole axis).

What enters: facts about x. What leaves: the same norm, a box of order statistics, Jacobian norm 1.
"""

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
    """All entries along one axis of the example, in ascending or descending order."""

    axis: int
    descending: bool = False

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError("the axis of a sort is counted from the front")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "TopK"

    @property
    def family(self) -> str:
        """Rule family."""
        return "sort"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The shape of x."""
        (shape,) = inputs
        if self.axis >= len(shape):
            raise ValueError(f"axis {self.axis} does not exist in shape {shape}")
        return shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        (x,) = inputs
        return self._sorted(x, self.axis + 1)

    def _sorted(self, array: FloatArray, axis: int) -> FloatArray:
        ascending = np.sort(array, axis=axis)
        return np.flip(ascending, axis=axis) if self.descending else ascending
