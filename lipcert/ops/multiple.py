"""RootMultiple: a value times the square root of a rational number, which need not be a float."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.ops.scalar import ScalarFunction
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class RootMultiple(ScalarFunction):
    """√square·x with square > 0: what the definitions of some operators hold."""

    square: Fraction

    def __post_init__(self) -> None:
        if self.square <= 0:
            raise ValueError(f"a root of a number that is not positive: {self.square}")

    @property
    def name(self) -> str:
        """Mul."""
        return "Mul"

    @property
    def factor(self) -> float:
        """√square in ordinary float64."""
        return float(np.sqrt(float(self.square)))

    def value(self, x: FloatArray) -> FloatArray:
        """√square·x."""
        return x * self.factor
