"""Several values: sums, products, quotients, products of matrices, concatenations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op, broadcast_shape, of_one_rank
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Add(Op):
    """y = Σ coefficient_i · x_i with broadcasting (Add, Sub, Sum and Mean of ONNX)."""

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.coefficients or not all(map(math.isfinite, self.coefficients)):
            raise ValueError(f"coefficients must be finite and at least one: {self.coefficients}")

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        if len(inputs) != len(self.coefficients):
            raise ValueError(f"{len(inputs)} values for {len(self.coefficients)} coefficients")
        return broadcast_shape(inputs)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        arrays = of_one_rank(inputs)
        terms = [c * x for c, x in zip(self.coefficients, arrays, strict=True)]
        return reduce(np.add, terms)


@final
@dataclass(frozen=True, slots=True)
class Concat(Op):
    """The values one after the other along an axis of the example."""

    axis: int

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError("the axis of a concatenation is counted from the front")

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


@final
@dataclass(frozen=True, slots=True)
class Multiply(Op):
    """y = a · b, entry by entry, with broadcasting."""

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Mul"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        return broadcast_shape(inputs)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        a, b = of_one_rank(inputs)
        return a * b


@final
@dataclass(frozen=True, slots=True)
class Quotient(Op):
    """y = a / b, entry by entry, with broadcasting."""

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Div"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The broadcast shape."""
        return broadcast_shape(inputs)

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64; NaN or infinite where b is 0."""
        a, b = of_one_rank(inputs)
        with np.errstate(all="ignore"):
            return a / b


@final
@dataclass(frozen=True, slots=True)
class MatMul(Op):
    """Y = A B on the last two axes: [..., n, k] · [..., k, m], the others broadcast."""

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """[..., n, m]."""
        a, b = inputs
        if min(len(a), len(b)) < 2 or a[-1] != b[-2]:
            raise ValueError(f"matrices of shape {a} and {b} cannot be multiplied")
        return (*broadcast_shape([a[:-2], b[:-2]]), a[-2], b[-1])

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        a, b = of_one_rank(inputs)
        product: FloatArray = a @ b
        return product
