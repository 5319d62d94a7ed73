"""Precision: the floating-point arithmetic in which a network is evaluated.

What enters: a name, as users and recorded runs spell it. What leaves: how far one rounding may be
off. Invariant: `unit` bounds the relative error of a rounding in either direction (to nearest or
not), so that it also covers hardware that truncates.
"""

from __future__ import annotations

from enum import Enum
from typing import final


@final
class Precision(Enum):
    """Arithmetic of products; sums are accumulated in float32 or better."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    """float32 storage whose products read 10 bits of the fraction"""
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def unit(self) -> float:
        """Largest relative error of one rounding of a stored result or a read operand."""
        bits = {"float64": 52, "float32": 23, "tf32": 10, "bfloat16": 7, "float16": 10}
        return float(2.0 ** -bits[self.value])

    @property
    def accumulator_unit(self) -> float:
        """Largest relative error of one addition within a sum of products."""
        return float(2.0**-52) if self is Precision.FLOAT64 else float(2.0**-23)

    @property
    def smallest(self) -> float:
        """Largest absolute error of a rounding near zero: the spacing of subnormal numbers."""
        exponents = {
            "float64": -1074,
            "float32": -149,
            "tf32": -149,
            "bfloat16": -133,
            "float16": -24,
        }
        return float(2.0 ** exponents[self.value])
