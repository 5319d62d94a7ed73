"""Gated functions with the numbers of a file that writes them out: GELU and HardSwish.

What enters: rational numbers, as a file holds them. What leaves: frozen `ScalarFunction`s, with the
invariants of `gates`. A number that a file holds is next to the one of the definition, 1/√2 say,
and never equal to it: the difference counts where it is all that is left of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, final

import numpy as np

from lipcert.interval import Interval
from lipcert.ops.error_function import erfc
from lipcert.ops.gates import ERF_TURNS, ERFC_ULPS, Gated, Turns
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
_ROOT_HALF: Final = decimal("0.707106781186547524400844362")
_ONE_OVER_ROOT_PI: Final = decimal("0.564189583547756286948079452")
_BISECTIONS: Final = 120
_SHARE: Final = 0.47
"""off the middle, so that no bisection starts at a number that people choose"""


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

    @property
    def _turns(self) -> Turns:
        shrink = _ROOT_HALF * rational(1 / self.slope)
        lowest, least, largest = ERF_TURNS.lowest, ERF_TURNS.least_slope, ERF_TURNS.largest_slope
        return Turns(
            Turn(lowest.place * shrink, lowest.value * shrink),
            Turn(least.place * shrink, least.value),
            Turn(largest.place * shrink, largest.value),
        )

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        result: FloatArray = x * 0.5 * erfc(-x * float(self.slope))
        return result

    def _gate(self, x: Interval) -> Interval:
        """erfc(−slope·x)/2; `erfc` errs by far less than 1024 ulp."""
        tail = (x * rational(self.slope)).monotone(lambda t: erfc(-t), ERFC_ULPS)
        return (tail * _HALF).clip(0.0, 1.0)

    def _gate_slope(self, x: Interval) -> Interval:
        """slope/√π·e^−(slope·x)²."""
        slope = rational(self.slope)
        scaled = x * slope
        return _ONE_OVER_ROOT_PI * slope * exponential(-(scaled * scaled))


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

    @property
    def _turns(self) -> Turns:
        return _tanh_turns(self)

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        inner = float(self.slope) * (x + float(self.cubic) * x**3)
        result: FloatArray = x * sigmoid(2.0 * inner)
        return result

    def falls(self, x: Interval) -> Interval:
        """Of the sign of f'(−x), x > 0: positive near 0."""
        inner = self._inner(x)
        return _ONE - _TWO * x * self._steepness(x) * logistic(_TWO * inner)

    def bends(self, x: Interval) -> Interval:
        """Of the sign of f''(x), x > 0: positive near 0."""
        double, steepness = _TWO * self._inner(x), self._steepness(x)
        curve = logistic(double) - logistic(-double)
        six = rational(6 * self.slope * self.cubic)
        return rational(self.slope) + six * x * x - x * curve * steepness * steepness

    def turn(self, place: Interval) -> Turn:
        """A place where f turns, with the value there."""
        return Turn(place, place * self._gate(place))

    def slope_turn(self, place: Interval) -> Turn:
        """A place where f' turns, with the slope there."""
        return Turn(place, self._gate(place) + place * self._gate_slope(place))

    def _inner(self, x: Interval) -> Interval:
        return rational(self.slope) * x * (_ONE + rational(self.cubic) * (x * x))

    def _steepness(self, x: Interval) -> Interval:
        return rational(self.slope) * (_ONE + rational(3 * self.cubic) * (x * x))

    def _gate(self, x: Interval) -> Interval:
        """σ(2u)."""
        return logistic(_TWO * self._inner(x))

    def _gate_slope(self, x: Interval) -> Interval:
        """2u'·σ(2u)σ(−2u)."""
        return self._steepness(x) * _HALF * squared_sech(self._inner(x))


@lru_cache(maxsize=256)
def _tanh_turns(gate: TanhGate) -> Turns:
    lowest, bend = _crossing(gate.falls), _crossing(gate.bends)
    return Turns(gate.turn(-lowest), gate.slope_turn(-bend), gate.slope_turn(bend))


def _crossing(sign: Callable[[Interval], Interval]) -> Interval:
    """Floats around the one place beyond 0 where a function that is positive at 0 is 0.

    Proof: between a place where an interval shows it positive, and one where it is negative.
    """
    low, high = 0.0, 1.0
    while not sign(constant(high)).hi < 0.0:
        high *= 2.0
    for _ in range(_BISECTIONS):
        middle = low + _SHARE * (high - low)
        found = sign(constant(middle))
        if found.lo > 0.0:
            low = middle
        elif found.hi < 0.0:
            high = middle
        else:
            break
    return Interval(np.asarray(low), np.asarray(high))


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

    @property
    def lipschitz(self) -> Upper:
        """3/2, approached at the kink 1/(2·slope) from below."""
        return Upper(1.5)

    @property
    def chord(self) -> Upper:
        """1: the gate is in [0, 1]."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """x times its gate."""
        return x * np.clip(x * float(self.slope) + 0.5, 0.0, 1.0)

    def image(self, box: Interval) -> Interval:
        """Falls from 0 at the kink to −1/(16·slope) half way to 0, then rises."""
        lowest = Turn(rational(-1 / (4 * self.slope)), rational(-1 / (16 * self.slope)))
        image = between_turns(box, lambda x: x * self._gate(x), [lowest])
        least = np.clip(box.lo, float(lowest.value.lo), 0.0)
        return Interval(np.maximum(image.lo, least), np.minimum(image.hi, np.maximum(box.hi, 0.0)))

    def derivative(self, box: Interval) -> Interval:
        """0 up to the kink, 2·slope·x + ½ between, 1 beyond; any value between on a kink."""
        kink = rational(1 / (2 * self.slope))
        middle = (box * rational(2 * self.slope) + _HALF).clip(-0.5, 1.5)
        left, right = box.lo <= -kink.lo, box.hi >= kink.lo
        inner = (box.hi >= -kink.hi) & (box.lo <= kink.hi)
        lo, hi = np.where(inner, middle.lo, np.inf), np.where(inner, middle.hi, -np.inf)
        lo, hi = np.where(left, np.minimum(lo, 0.0), lo), np.where(left, np.maximum(hi, 0.0), hi)
        return Interval(
            np.where(right, np.minimum(lo, 1.0), lo), np.where(right, np.maximum(hi, 1.0), hi)
        )

    def _gate(self, x: Interval) -> Interval:
        return (x * rational(self.slope) + _HALF).clip(0.0, 1.0)
