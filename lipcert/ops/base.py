"""Op: the contract every operation fulfils, as a handful of short answers.

Shapes are per example: the batch axis never appears, except in `evaluate`, which works on
[examples, *shape] arrays. A missing answer is a type error, never silence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from lipcert.core.program import Shape
from lipcert.operand import Operand
from lipcert.upper import FloatArray


class Op(ABC):
    """One operation of the graph; subclasses are final frozen dataclasses of its attributes."""

    __slots__ = ()

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name for reports, in the spelling of ONNX where ONNX has one ("Conv")."""

    @property
    @abstractmethod
    def family(self) -> str:
        """First part of the rule ids of this op ("conv")."""

    @abstractmethod
    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Shape of the output for inputs of these shapes; ValueError where they do not fit."""

    @abstractmethod
    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The op in float64 numpy on [examples, *shape] arrays: the meaning of the rules."""

    def operands(self) -> Mapping[str, Operand]:
        """The constant tensors of this op by slot ("weight", "bias", "scale", "slope")."""
        return {}
