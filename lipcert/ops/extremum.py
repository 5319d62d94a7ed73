"""The entrywise maximum or minimum of several values.

What enters: facts about the values. What leaves: norm and box of the result, and one Jacobian
norm per value, for any choice among equal entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import aligned, broadcast_shape
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Extremum(Op):
    """y = max(x_1, …, x_n) or the minimum, entry by entry, with broadcasting."""

    largest: bool

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Max" if self.largest else "Min"

    @property
    def family(self) -> str:
        """Rule family."""
        return "extremum"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        return broadcast_shape(inputs)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        rank = max(x.ndim for x in inputs) - 1
        return self._chosen([aligned(x, rank) for x in inputs])

    def _chosen(self, arrays: Sequence[FloatArray]) -> FloatArray:
        return reduce(np.maximum if self.largest else np.minimum, arrays)
