"""Gated scalar functions x·g(x) with 0 ≤ g ≤ 1: GELU, SiLU, QuickGELU, Mish, HardSwish.

What enters: the attributes of the node. What leaves: frozen `ScalarFunction`s. Invariant: all are
between min(x, 0) and max(x, 0), so |f(x)| ≤ |x| although their slope exceeds 1. Each smooth one
falls to a single minimum and then rises; its derivative falls from 0 to a minimum, rises to a
maximum and falls to 1 (proved per class, for the sign of f'').
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np

from lipcert.interval import Interval
from lipcert.ops.error_function import erfc
from lipcert.ops.scalar import (
    ScalarFunction,
    Turn,
    between_turns,
    constant,
    decimal,
    exponential,
    logistic,
    rational,
    sigmoid,
    squared_sech,
)
from lipcert.upper import ONE, FloatArray, Upper

_ONE: Final = constant(1.0)
_HALF: Final = constant(0.5)
_TWO: Final = constant(2.0)
ERFC_ULPS: Final = 1024
_ROOT_HALF: Final = decimal("0.707106781186547524400844362")
_ROOT_TWO_OVER_PI: Final = decimal("0.797884560802865355879892120")
_DENSITY_AT_ZERO: Final = decimal("0.398942280401432677939946060")
_GELU_CUBIC: Final = decimal("0.044715")


@dataclass(frozen=True, slots=True)
class Turns:
    """The minimum of a gated function, and both extremes of its derivative."""

    lowest: Turn
    least_slope: Turn
    largest_slope: Turn


ERF_TURNS: Final = Turns(
    Turn.of("-0.7517915246935644574579049", "-0.169971207479903661693868471"),
    Turn.of("-1.414213562373095048801689", "-0.1289041451851547863407444423"),
    Turn.of("1.414213562373095048801689", "1.128904145185154786340744442"),
)
_TANH_TURNS: Final = Turns(
    Turn.of("-0.7524614220710162584879544", "-0.170040750571254050639067428"),
    Turn.of("-1.418504008790828355548034", "-0.1289930686587717654559044704"),
    Turn.of("1.418504008790828355548034", "1.12899306865877176545590447"),
)
_SILU_TURNS: Final = Turns(
    Turn.of("-1.278464542761073795109359", "-0.278464542761073795109358739"),
    Turn.of("-2.39935728051546766783274", "-0.09983932012886691695818492432"),
    Turn.of("2.39935728051546766783274", "1.099839320128866916958184924"),
)
_MISH_TURNS: Final = Turns(
    Turn.of("-1.192431214515495212137588", "-0.308843413017250406628760229"),
    Turn.of("-2.256376396360793120005749", "-0.1125261223894625564073279011"),
    Turn.of("1.490571179485428459294419", "1.088498161251727861228293627"),
)


class Gated(ScalarFunction):
    """A smooth gated function: `_gate` and `_gate_slope` enclose g and g' at exact points."""

    __slots__ = ()

    @property
    @abstractmethod
    def _turns(self) -> Turns: ...

    @abstractmethod
    def _gate(self, x: Interval) -> Interval: ...

    @abstractmethod
    def _gate_slope(self, x: Interval) -> Interval: ...

    @property
    def lipschitz(self) -> Upper:
        """The maximum of f', attained."""
        return self._turns.largest_slope.value.max_abs()

    @property
    def chord(self) -> Upper:
        """1: |x·g(x)| ≤ |x|."""
        return ONE

    def image(self, box: Interval) -> Interval:
        """Falls to the minimum, then rises; between min(x, 0) and max(x, 0)."""
        lowest = self._turns.lowest
        image = between_turns(box, lambda x: x * self._gate(x), [lowest])
        least = np.clip(box.lo, lowest.value.lo, 0.0)
        return Interval(np.maximum(image.lo, least), np.minimum(image.hi, np.maximum(box.hi, 0.0)))

    def derivative(self, box: Interval) -> Interval:
        """g(x) + x·g'(x), between its two extremes."""
        turns = self._turns
        bounds = between_turns(
            box,
            lambda x: self._gate(x) + x * self._gate_slope(x),
            [turns.least_slope, turns.largest_slope],
        )
        return bounds.clip(float(turns.least_slope.value.lo), float(turns.largest_slope.value.hi))


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

    @property
    def _turns(self) -> Turns:
        return _TANH_TURNS if self.approximate else ERF_TURNS

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        if self.approximate:
            gate = sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))
        else:
            gate = 0.5 * erfc(-x * math.sqrt(0.5))
        result: FloatArray = x * gate
        return result

    def _gate(self, x: Interval) -> Interval:
        """σ(2u), or erfc(−x/√2)/2; `erfc` errs by far less than 1024 ulp."""
        if self.approximate:
            return logistic(_TWO * self._cubic(x))
        tail = (x * _ROOT_HALF).monotone(lambda t: erfc(-t), ERFC_ULPS)
        return (tail * _HALF).clip(0.0, 1.0)

    def _gate_slope(self, x: Interval) -> Interval:
        """2u'·σ(2u)σ(−2u), or the normal density."""
        if self.approximate:
            slope = _ROOT_TWO_OVER_PI * (_ONE + constant(3.0) * _GELU_CUBIC * (x * x))
            return slope * _HALF * squared_sech(self._cubic(x))
        return _DENSITY_AT_ZERO * exponential(-(x * x) * _HALF)

    @staticmethod
    def _cubic(x: Interval) -> Interval:
        return _ROOT_TWO_OVER_PI * x * (_ONE + _GELU_CUBIC * (x * x))


@final
@dataclass(frozen=True, slots=True)
class Silu(Gated):
    """x·σ(x), also called Swish.

    Proof of the turns: f'' = σ(x)σ(−x)·(2 − x·tanh(x/2)), and x·tanh(x/2) rises with |x|.
    """

    @property
    def _turns(self) -> Turns:
        return _SILU_TURNS

    def value(self, x: FloatArray) -> FloatArray:
        """x·σ(x)."""
        result: FloatArray = x * sigmoid(x)
        return result

    def _gate(self, x: Interval) -> Interval:
        return logistic(x)

    def _gate_slope(self, x: Interval) -> Interval:
        return logistic(x) * logistic(-x)


@final
@dataclass(frozen=True, slots=True)
class Mish(Gated):
    """x·tanh(ln(1 + e^x)).

    Proof of the turns: with w = e^x and q = 2w³ + 3w² − 2w − 2, f'' = 0 exactly where
    ln w = R(w) = 2(w + 1)(w² + 2w + 2)/q. The numerator of R' is
    −2(3w⁴ + 20w³ + 36w² + 24w + 4) < 0, so R falls on either side of the single positive root
    of q while ln rises: one solution below the root (R from −2 to −∞), one above (∞ to 1).
    """

    @property
    def _turns(self) -> Turns:
        return _MISH_TURNS

    def value(self, x: FloatArray) -> FloatArray:
        """x·tanh(ln(1 + e^x))."""
        return x * np.tanh(np.logaddexp(0.0, x))

    def _gate(self, x: Interval) -> Interval:
        return self._softplus(x).monotone(np.tanh).clip(0.0, 1.0)

    def _gate_slope(self, x: Interval) -> Interval:
        return squared_sech(self._softplus(x)) * logistic(x)

    @staticmethod
    def _softplus(x: Interval) -> Interval:
        return x.monotone(lambda t: np.logaddexp(0.0, t)).clip(0.0, math.inf)


@final
@dataclass(frozen=True, slots=True)
class QuickGelu(ScalarFunction):
    """x·σ(sharpness·x) = silu(sharpness·x)/sharpness; usually with sharpness 1.702."""

    sharpness: float | Fraction

    def __post_init__(self) -> None:
        if not math.isfinite(self.sharpness) or self.sharpness == 0:
            raise ValueError(f"QuickGelu needs a finite sharpness other than 0: {self.sharpness}")

    @property
    def lipschitz(self) -> Upper:
        """That of SiLU."""
        return Silu().lipschitz

    @property
    def chord(self) -> Upper:
        """1: |x·σ| ≤ |x|."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """x·σ(sharpness·x)."""
        result: FloatArray = x * sigmoid(float(self.sharpness) * x)
        return result

    def image(self, box: Interval) -> Interval:
        """That of SiLU, scaled; between min(x, 0) and max(x, 0)."""
        image = Silu().image(self._scaled(box)) * rational(1 / Fraction(self.sharpness))
        return Interval(
            np.maximum(image.lo, np.minimum(box.lo, 0.0)),
            np.minimum(image.hi, np.maximum(box.hi, 0.0)),
        )

    def derivative(self, box: Interval) -> Interval:
        """That of SiLU at the scaled argument."""
        return Silu().derivative(self._scaled(box))

    def _scaled(self, box: Interval) -> Interval:
        return box * rational(Fraction(self.sharpness))


@final
@dataclass(frozen=True, slots=True)
class HardSwish(ScalarFunction):
    """x·min(max(x/6 + ½, 0), 1)."""

    @property
    def lipschitz(self) -> Upper:
        """3/2, approached at 3 from below."""
        return Upper(1.5)

    @property
    def chord(self) -> Upper:
        """1: the gate is in [0, 1]."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        return x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)

    def image(self, box: Interval) -> Interval:
        """Falls from 0 at −3 to −3/8 at −3/2, then rises."""
        lowest = Turn(constant(-1.5), constant(-0.375))
        image = between_turns(box, self._at, [lowest])
        return Interval(
            np.maximum(image.lo, np.clip(box.lo, -0.375, 0.0)),
            np.minimum(image.hi, np.maximum(box.hi, 0.0)),
        )

    def derivative(self, box: Interval) -> Interval:
        """0 up to −3, x/3 + ½ between, 1 from 3 on; both one-sided values on the kinks."""
        middle = (box.clip(-3.0, 3.0) * constant(3.0).reciprocal() + _HALF).clip(-0.5, 1.5)
        left, right = box.lo <= -3.0, box.hi >= 3.0
        inner = (box.hi >= -3.0) & (box.lo <= 3.0)
        lo = np.where(inner, middle.lo, np.where(left, 0.0, 1.0))
        hi = np.where(inner, middle.hi, np.where(right, 1.0, 0.0))
        lo = np.where(left, np.minimum(lo, 0.0), np.where(right, np.minimum(lo, 1.0), lo))
        hi = np.where(right, np.maximum(hi, 1.0), np.where(left, np.maximum(hi, 0.0), hi))
        return Interval(lo, hi)

    @staticmethod
    def _at(x: Interval) -> Interval:
        gate = (x * constant(6.0).reciprocal() + _HALF).clip(0.0, 1.0)
        return x * gate
