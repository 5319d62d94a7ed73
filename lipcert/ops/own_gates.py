"""Gated functions with the numbers of a file that writes them out: GELU and HardSwish.

What enters: rational numbers, as a file holds them. What leaves: frozen `ScalarFunction`s, with the
invariants of `gates`. A number that a file holds is next to the one of the definition, 1/√2 say,
and never equal to it: the difference counts where it is all that is left of a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.ops.error_function import erfc
from lipcert.ops.gates import Gated
from lipcert.ops.scalar import (
    ScalarFunction,
    sigmoid,
)
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class ErfGate(Gated):
    """x/2·(1 + erf(slope·x)) with slope > 0: gelu(s·x)/s for s = √2·slope.

    Proof of the turns: those of GELU, at places divided by s; the lowest value is divided, too.
    """

    slope: Fraction

    def __post_init__(self) -> None:
        if self.slope <= 0:
            raise ValueError(f"the gate of a GELU needs a positive slope: {float(self.slope)}")

    @property
    def name(self) -> str:
        """Gelu."""
        return "Gelu"

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        result: FloatArray = x * 0.5 * erfc(-x * float(self.slope))
        return result


@final
@dataclass(frozen=True, slots=True)
class TanhGate(Gated):
    """x/2·(1 + tanh u), u = slope·(x + cubic·x³), with positive numbers.

    Proof of the turns, for all such numbers: it is x·σ(2u), and f'' has the even sign of
    slope·(1 + 6·cubic·x²) − x·tanh(u)·u'², which changes once beyond 0 (see `Gelu`). So f' falls
    from 0, rises to above 1 and falls to 1: it changes its sign once, where
    1 + 2xu'·σ(−2u) does.
    """

    slope: Fraction
    cubic: Fraction

    def __post_init__(self) -> None:
        if not all(2**-20 <= number <= 2**20 for number in (self.slope, self.cubic)):
            numbers = f"{float(self.slope)}, {float(self.cubic)}"
            raise ValueError(f"the numbers of a GELU by tanh are extreme: {numbers}")

    @property
    def name(self) -> str:
        """Gelu."""
        return "Gelu"

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        inner = float(self.slope) * (x + float(self.cubic) * x**3)
        result: FloatArray = x * sigmoid(2.0 * inner)
        return result


@final
@dataclass(frozen=True, slots=True)
class HardGate(ScalarFunction):
    """x·min(max(slope·x + ½, 0), 1) with slope > 0."""

    slope: Fraction

    def __post_init__(self) -> None:
        if self.slope <= 0:
            raise ValueError(f"the gate of a HardSwish needs a positive slope: {self.slope}")

    @property
    def name(self) -> str:
        """HardSwish."""
        return "HardSwish"

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        return x * np.clip(x * float(self.slope) + 0.5, 0.0, 1.0)
