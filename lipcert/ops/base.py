"""Op: what lowering to torch and the comparison of readings ask of an operation.

Shapes are per example: the batch axis never appears, except in `evaluate`, which works on
[examples, *shape] arrays. What is proved about steps stands in `lipcert.core.rules`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from lipcert.core.program import Shape
from lipcert.operand import Operand
from lipcert.upper import FloatArray


class Op(ABC):
    """One operation of the graph; subclasses are final frozen dataclasses of its attributes."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """Name for reports, in the spelling of ONNX where ONNX has one ("Conv")."""
        return type(self).__name__

    @abstractmethod
    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Shape of the output for inputs of these shapes; ValueError where they do not fit."""

    @abstractmethod
    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The op in float64 numpy on [examples, *shape] arrays."""

    def operands(self) -> Mapping[str, Operand]:
        """The constant tensors of this op by slot ("weight", "bias", "scale", "slope")."""
        return {}


class Entrywise(Op):
    """An op of one value that keeps its shape, whatever that is."""

    __slots__ = ()

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input."""
        (shape,) = inputs
        return shape


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The common shape; ValueError where the shapes do not fit."""
    return np.broadcast_shapes(*shapes)


def aligned(array: FloatArray, rank: int) -> FloatArray:
    """An array [examples, *shape] with unit axes after the first, so that shape has this rank."""
    examples, *shape = array.shape
    return array.reshape(examples, *[1] * (rank - len(shape)), *shape)


def of_one_rank(arrays: Sequence[FloatArray]) -> list[FloatArray]:
    """Arrays [examples, *shape] made to broadcast against each other behind the first axis."""
    rank = max(array.ndim for array in arrays) - 1
    return [aligned(array, rank) for array in arrays]
