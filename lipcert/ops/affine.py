"""Elementwise maps by constant or trained tensors: x·s + b, x/d and x + b, broadcast into x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from lipcert.core.program import Shape
from lipcert.operand import Operand
from lipcert.ops.base import Op, broadcast_shape
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class Scale(Op):
    """y = x · scale + bias, the operands broadcast into the shape of x."""

    scale: Operand
    bias: Operand | None = None

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Mul"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The shape of x."""
        return _unchanged(inputs, *self.operands().values())

    def operands(self) -> Mapping[str, Operand]:
        """The factors, and the terms added where there are any."""
        return {"scale": self.scale} | ({} if self.bias is None else {"bias": self.bias})

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        result: FloatArray = x * self.scale.array
        return result if self.bias is None else result + self.bias.array


@final
@dataclass(frozen=True, slots=True, eq=False)
class Divide(Op):
    """y = x / divisor, the operand broadcast into the shape of x."""

    divisor: Operand

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Div"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The shape of x."""
        return _unchanged(inputs, self.divisor)

    def operands(self) -> Mapping[str, Operand]:
        """The divisors."""
        return {"divisor": self.divisor}

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        result: FloatArray = x / self.divisor.array
        return result


@final
@dataclass(frozen=True, slots=True, eq=False)
class Shift(Op):
    """y = x + bias, the operand broadcast into the shape of x."""

    bias: Operand

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Add"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The shape of x."""
        return _unchanged(inputs, self.bias)

    def operands(self) -> Mapping[str, Operand]:
        """The terms added."""
        return {"bias": self.bias}

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        result: FloatArray = x + self.bias.array
        return result


def _unchanged(inputs: Sequence[Shape], *operands: Operand) -> Shape:
    (shape,) = inputs
    for operand in operands:
        if broadcast_shape([shape, operand.shape]) != shape:
            raise ValueError(f"an operand of shape {operand.shape} does not broadcast into {shape}")
    return shape
