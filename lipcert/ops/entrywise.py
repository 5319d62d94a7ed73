"""Functions of one number, applied entry by entry, and PRelu with its slope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import Shape
from lipcert.evaluate import function_of
from lipcert.operand import Operand
from lipcert.ops.base import Entrywise, Op, aligned
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Activation(Entrywise):
    """y = f(x) entry by entry: name and numbers as of `core.program.Activation`."""

    name: str
    numbers: tuple[float, ...] = ()

    @property
    def kind(self) -> str:
        """Name of the function, spelled as operators are."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """f(x); NaN or infinite where it is not defined."""
        (x,) = inputs
        with np.errstate(all="ignore"):
            return function_of(self.name, self.numbers, x)


@final
@dataclass(frozen=True, slots=True, eq=False)
class PRelu(Op):
    """y = x for x ≥ 0, slope·x below; the trained slope broadcasts to the value."""

    slope: Operand

    def operands(self) -> Mapping[str, Operand]:
        """The slope."""
        return {"slope": self.slope}

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input, to which the slope must broadcast."""
        (shape,) = inputs
        if np.broadcast_shapes(shape, self.slope.shape) != shape:
            raise ValueError(f"slope {self.slope.shape} does not broadcast to input {shape}")
        return shape

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Either branch."""
        (x,) = inputs
        slope = aligned(self.slope.array[np.newaxis], x.ndim - 1)
        return np.where(x >= 0.0, x, slope * x)
