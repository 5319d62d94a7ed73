"""Local response normalization: every entry divided by a power of the squares around it.

What enters: facts about x of shape [channels, ...]. What leaves: norm, box and Jacobian norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import Bound, Shape, ValueFacts, product_of
from lipcert.interval import Interval
from lipcert.ops.base import Op
from lipcert.ops.scalar import constant
from lipcert.scope import Scope
from lipcert.upper import ONE, FloatArray, Upper


@final
@dataclass(frozen=True, slots=True)
class Lrn(Op):
    """y_c = x_c / s_c^power, s_c = floor + (strength/size)·Σ x² over `size` channels around c."""

    size: int
    strength: float
    power: float
    floor: float

    def __post_init__(self) -> None:
        numbers = (self.strength, self.power, self.floor)
        if self.size < 1 or not all(map(math.isfinite, numbers)):
            raise ValueError(f"size, alpha, beta and bias of LRN are out of range: {self}")
        if self.strength < 0.0 or self.power < 0.0 or self.floor <= 0.0:
            raise ValueError(f"LRN needs alpha >= 0, beta >= 0 and bias > 0: {self}")

    @property
    def kind(self) -> str:
        """ONNX name."""
        return "LRN"

    @property
    def family(self) -> str:
        """Rule family."""
        return "lrn"

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """That of the input, which needs a channel axis."""
        (shape,) = inputs
        if not shape:
            raise ValueError("LRN needs an axis of channels")
        return shape

    def output_facts(self, inputs: Sequence[ValueFacts], scope: Scope) -> ValueFacts:
        """Returns B ≥ sup ‖y‖ = X/floor^power, entry by entry too, because s ≥ floor.

        Attained: approached as X → 0; exactly at strength 0.
        """
        del scope
        (x,) = inputs
        rule = "lrn.output_norm"
        shrink = self._shrink()
        box = x.box * Interval(np.zeros(()), shrink.hi)
        return ValueFacts.of(x.shape, product_of(rule, x.norm, Bound(_top(shrink), rule)), box)

    def input_lipschitz(self, index: int, inputs: Sequence[ValueFacts], scope: Scope) -> Bound:
        """Returns floor^−β·(1 + 2√size·(1 + 1/β)^−(β+1)) ≥ sup ‖J‖, β = power.

        Proof: J = D − B with 0 < D = diag(s^−β) ≤ floor^−β and, for the channels j around i,
        B_ij = (2βα/size)·x_i·x_j·s_i^−(β+1). With a = (α/size)·Σ_j x_j² = s_i − floor, row i has
        the norm at most 2β·a/(floor + a)^(β+1), because |x_i| is one of the |x_j|; this is
        largest at a = floor/β, where it is r = 2·floor^−β·(1 + 1/β)^−(β+1). Each entry of x
        occurs in at most `size` rows, so ‖B‖ ≤ √(Σ over the rows that one entry meets) ≤ √size·r:
        ‖Bv‖² ≤ Σ_i r²·‖v around i‖² ≤ r²·size·‖v‖².
        Attained: at x = 0 up to the second term.
        """
        del index, inputs, scope
        rule = "lrn.input_lipschitz"
        steepness = ONE
        if self.power > 0.0 and self.strength > 0.0:
            beta = constant(self.power)
            base = constant(1.0) + beta.reciprocal()
            exponent = -(beta + constant(1.0))
            rise = _top(_power(base, exponent)) * Upper(2.0)
            steepness = ONE + rise * Upper(float(self.size)).sqrt()
        return product_of(rule, Bound(_top(self._shrink()), rule), Bound(steepness, rule))

    def evaluate(self, *inputs: FloatArray) -> FloatArray:
        """Plain float64."""
        (x,) = inputs
        before, channels = (self.size - 1) // 2, x.shape[1]
        squares = np.zeros_like(x)
        for channel in range(channels):
            around = slice(max(0, channel - before), channel - before + self.size)
            squares[:, channel] = np.sum(x[:, around] ** 2, axis=1)
        result: FloatArray = x / (self.floor + self.strength / self.size * squares) ** self.power
        return result

    def _shrink(self) -> Interval:
        return _power(constant(self.floor), constant(-self.power))


def _power(base: Interval, exponent: Interval) -> Interval:
    """base^exponent for a base near one positive number: monotone in each; numpy errs by ≤ 8 ulp.

    The four corners hold the extremes.
    """
    corners = [np.power(b, e) for b in (base.lo, base.hi) for e in (exponent.lo, exponent.hi)]
    return Interval(np.minimum.reduce(corners), np.maximum.reduce(corners)).widen(8)


def _top(interval: Interval) -> Upper:
    return Upper(float(interval.hi))
