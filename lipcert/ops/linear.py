"""Dense layers: y = W x + b on the last axis, the same at every position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from lipcert.core.program import Shape
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class Dense(Op):
    """y[..., o] = Σ_i weight[o, i] · x[..., i] + bias[o]. weight: [out, in]; bias: [out]."""

    weight: Operand
    bias: Operand | None = None

    def __post_init__(self) -> None:
        if len(self.weight.shape) != 2:
            raise ValueError(f"a dense weight has two axes, not shape {self.weight.shape}")
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise ValueError(f"bias {self.bias.shape} does not fit weight {self.weight.shape}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "Gemm"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """The last axis is replaced by the rows of the weight."""
        (shape,) = inputs
        if shape[-1:] != self.weight.shape[1:]:
            raise ValueError(f"input {shape} does not fit weight {self.weight.shape}")
        return (*shape[:-1], self.weight.shape[0])

    def operands(self) -> Mapping[str, Operand]:
        """Weight, and bias where there is one."""
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        product: FloatArray = x @ self.weight.array.T
        return product if self.bias is None else product + self.bias.array
