"""Products and quotients of two values entry by entry, and products of matrices.

What enters: facts about both values. What leaves: norm and box of the result, and for each value
the Jacobian norm, which is a norm of the *other* value: bounded only on a bounded domain.
"""

from __future__ import annotations

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
class Multiply(Op):
    """y = a · b, entry by entry, with broadcasting."""

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Mul"

    @property
    def family(self) -> str:
        """Rule family."""
        return "multiply"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        first, second = inputs
        return broadcast_shape([first, second])

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        rank = max(x.ndim for x in inputs) - 1
        a, b = (aligned(x, rank) for x in inputs)
        return a * b


@final
@dataclass(frozen=True, slots=True)
class Quotient(Op):
    """y = a / b, entry by entry, with broadcasting."""

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Div"

    @property
    def family(self) -> str:
        """Rule family."""
        return "quotient"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        first, second = inputs
        return broadcast_shape([first, second])

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64; NaN or infinite where b is 0."""
        rank = max(x.ndim for x in inputs) - 1
        a, b = (aligned(x, rank) for x in inputs)
        with np.errstate(all="ignore"):
            return a / b


@final
@dataclass(frozen=True, slots=True)
class MatMul(Op):
    """Y = A B on the last two axes: [..., n, k] · [..., k, m], the others broadcast."""

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "MatMul"

    @property
    def family(self) -> str:
        """Rule family."""
        return "matmul"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """[..., n, m]."""
        a, b = inputs
        if min(len(a), len(b)) < 2 or a[-1] != b[-2]:
            raise ValueError(f"matrices of shape {a} and {b} cannot be multiplied")
        return (*broadcast_shape([a[:-2], b[:-2]]), a[-2], b[-1])

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        rank = max(x.ndim for x in inputs) - 1
        a, b = (aligned(x, rank) for x in inputs)
        product: FloatArray = a @ b
        return product
