"""Gated scalar functions x·g(x) with 0 ≤ g ≤ 1: GELU, SiLU, QuickGELU, Mish, HardSwish.

What enters: the attributes of the node. What leaves: frozen `ScalarFunction`s. Invariant: all are
between min(x, 0) and max(x, 0), so |f(x)| ≤ |x| although their slope exceeds 1. Each smooth one
falls to a single minimum and then rises; its derivative falls from 0 to a minimum, rises to a
maximum and falls to 1 (proved per class, for the sign of f'').
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.ops.error_function import erfc
from lipcert.ops.scalar import (
    ScalarFunction,
    sigmoid,
)
from lipcert.upper import FloatArray


class Gated(ScalarFunction):
    """A smooth gated function: `_gate` and `_gate_slope` enclose g and g' at exact points."""

    __slots__ = ()


@final
@dataclass(frozen=True, slots=True)
class Gelu(Gated):
    """x·Φ(x), or ONNX's tanh approximation of it.

    Proof of the turns: exactly, f'' = (2 − x²)·φ(x). Approximately, with u = c(x + kx³),
    f'' has the sign of 1 − x·tanh(u)·u'²/(c(1 + 6kx²)); for x > 0 the subtracted term is a
    product of the rising x·tanh(u) and c(1 + 9k²x⁴/(1 + 6kx²)), so f'' vanishes at ± one point.
    """

    approximate: bool = False

    @property
    def name(self) -> str:
        """Gelu."""
        return "Gelu"

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        if self.approximate:
            gate = sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))
        else:
            gate = 0.5 * erfc(-x * math.sqrt(0.5))
        result: FloatArray = x * gate
        return result


@final
@dataclass(frozen=True, slots=True)
class Silu(Gated):
    """x·σ(x), also called Swish.

    Proof of the turns: f'' = σ(x)σ(−x)·(2 − x·tanh(x/2)), and x·tanh(x/2) rises with |x|.
    """

    def value(self, x: FloatArray) -> FloatArray:
        """x·σ(x)."""
        result: FloatArray = x * sigmoid(x)
        return result


@final
@dataclass(frozen=True, slots=True)
class Mish(Gated):
    """x·tanh(ln(1 + e^x)).

    Proof of the turns: with w = e^x and q = 2w³ + 3w² − 2w − 2, f'' = 0 exactly where
    ln w = R(w) = 2(w + 1)(w² + 2w + 2)/q. The numerator of R' is
    −2(3w⁴ + 20w³ + 36w² + 24w + 4) < 0, so R falls on either side of the single positive root
    of q while ln rises: one solution below the root (R from −2 to −∞), one above (∞ to 1).
    """

    def value(self, x: FloatArray) -> FloatArray:
        """x·tanh(ln(1 + e^x))."""
        return x * np.tanh(np.logaddexp(0.0, x))


@final
@dataclass(frozen=True, slots=True)
class QuickGelu(ScalarFunction):
    """x·σ(sharpness·x) = silu(sharpness·x)/sharpness; usually with sharpness 1.702."""

    sharpness: float | Fraction

    def __post_init__(self) -> None:
        if not math.isfinite(self.sharpness) or self.sharpness == 0:
            raise ValueError(f"QuickGelu needs a finite sharpness other than 0: {self.sharpness}")

    def value(self, x: FloatArray) -> FloatArray:
        """x·σ(sharpness·x)."""
        result: FloatArray = x * sigmoid(float(self.sharpness) * x)
        return result


@final
@dataclass(frozen=True, slots=True)
class HardSwish(ScalarFunction):
    """x·min(max(x/6 + ½, 0), 1)."""

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        return x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)
