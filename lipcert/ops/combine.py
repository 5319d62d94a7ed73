"""Linear combinations and concatenations of several values.

What enters: facts about the values. What leaves: norm and box of the result, and one Jacobian
norm per value. A value that is passed twice is counted twice, because its cotangents add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op
from lipcert.ops.broadcasting import aligned, broadcast_shape
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Add(Op):
    """y = Σ coefficient_i · x_i with broadcasting (Add, Sub, Sum and Mean of ONNX)."""

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.coefficients or not all(map(math.isfinite, self.coefficients)):
            raise ValueError(f"coefficients must be finite and at least one: {self.coefficients}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Add"

    @property
    def family(self) -> str:
        """Rule family."""
        return "add"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        if len(inputs) != len(self.coefficients):
            raise ValueError(f"{len(inputs)} values for {len(self.coefficients)} coefficients")
        return broadcast_shape(inputs)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        rank = max(x.ndim for x in inputs) - 1
        terms = [c * aligned(x, rank) for c, x in zip(self.coefficients, inputs, strict=True)]
        result = terms[0]
        for term in terms[1:]:
            result = result + term
        return result


@final
@dataclass(frozen=True, slots=True)
class Concat(Op):
    """The values one after the other along an axis of the example."""

    axis: int

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError("the axis of a concatenation is counted from the front")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Concat"

    @property
    def family(self) -> str:
        """Rule family."""
        return "concat"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Lengths along the axis add; the others agree."""
        rest = {(*shape[: self.axis], *shape[self.axis + 1 :]) for shape in inputs}
        ranks = {len(shape) for shape in inputs}
        if len(rest) != 1 or len(ranks) != 1 or self.axis >= min(ranks):
            raise ValueError(f"shapes {list(inputs)} do not concatenate along axis {self.axis}")
        length = sum(shape[self.axis] for shape in inputs)
        return (*inputs[0][: self.axis], length, *inputs[0][self.axis + 1 :])

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Exact."""
        return np.concatenate(inputs, axis=self.axis + 1)
