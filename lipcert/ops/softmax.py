"""Softmax and its logarithm along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.ops.base import Op
from lipcert.upper import FloatArray


class _OverAxis(Op):
    """An op that treats every slice along one axis alike."""

    __slots__ = ()
    axis: int

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input."""
        (shape,) = inputs
        self._position(len(shape))
        return shape

    def _position(self, rank: int) -> int:
        if not -rank <= self.axis < rank:
            raise ValueError(f"axis {self.axis} does not fit a value with {rank} axes")
        return self.axis % rank


@final
@dataclass(frozen=True, slots=True)
class Softmax(_OverAxis):
    """p = e^z / Σ e^z along the axis."""

    axis: int = -1

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The probabilities."""
        (x,) = inputs
        axis = self._position(x.ndim - 1) + 1
        powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
        result: FloatArray = powers / np.sum(powers, axis=axis, keepdims=True)
        return result


@final
@dataclass(frozen=True, slots=True)
class LogSoftmax(_OverAxis):
    """z − ln Σ e^z along the axis."""

    axis: int = -1

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """The logarithms of the probabilities."""
        (x,) = inputs
        axis = self._position(x.ndim - 1) + 1
        below = x - np.max(x, axis=axis, keepdims=True)
        result: FloatArray = below - np.log(np.sum(np.exp(below), axis=axis, keepdims=True))
        return result
