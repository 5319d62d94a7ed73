"""Smooth scalar functions: sigmoids, softplus, the error function, and the two waves.

What enters: nothing but the argument. What leaves: frozen `ScalarFunction`s. Invariant: the
derivatives of the sigmoids are even and fall with |x|, so that a box yields their exact range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from lipcert.interval import Interval
from lipcert.ops.error_function import erf
from lipcert.ops.scalar import (
    ScalarFunction,
    Turn,
    between_turns,
    constant,
    decimal,
    expected_sign,
    exponential,
    logistic,
    sigmoid,
    squared_sech,
)
from lipcert.upper import ONE, FloatArray, Upper

_ZERO: Final = constant(0.0)
_ONE: Final = constant(1.0)
_ERF_ULPS: Final = 64
_TWO_OVER_ROOT_PI: Final = decimal("1.128379167095512573896158903")
_LN_2: Final = decimal("0.693147180559945309417232121")
_PI: Final = decimal("3.141592653589793238462643383")
_WAVE_ERROR: Final = 2.0**-50
_GUARD: Final = 15.0


def _bell(box: Interval, at: Callable[[Interval], Interval], top: Interval) -> Interval:
    """Range of an even function that falls with |x| from its value `top` at 0."""
    return between_turns(box, at, [Turn(_ZERO, top)]).clip(0.0, float(top.hi))


@final
@dataclass(frozen=True, slots=True)
class Sigmoid(ScalarFunction):
    """1 / (1 + e^−x)."""

    @property
    def lipschitz(self) -> Upper:
        """¼, attained at 0."""
        return Upper(0.25)

    @property
    def origin(self) -> Upper:
        """½."""
        return Upper(0.5)

    def value(self, x: FloatArray) -> FloatArray:
        """1 / (1 + e^−x)."""
        return sigmoid(x)

    def image(self, box: Interval) -> Interval:
        """Monotone."""
        return logistic(box)

    def derivative(self, box: Interval) -> Interval:
        """σ(x)σ(−x): even, with a single maximum ¼ at 0."""
        return _bell(box, lambda x: logistic(x) * logistic(-x), constant(0.25))


@final
@dataclass(frozen=True, slots=True)
class Tanh(ScalarFunction):
    """Hyperbolic tangent."""

    @property
    def lipschitz(self) -> Upper:
        """1, attained at 0."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """tanh x."""
        return np.tanh(x)

    def image(self, box: Interval) -> Interval:
        """Monotone."""
        return expected_sign(box, box.monotone(np.tanh).clip(-1.0, 1.0))

    def derivative(self, box: Interval) -> Interval:
        """1 − tanh² x = 4σ(2x)σ(−2x): even, with a single maximum 1 at 0."""
        return _bell(box, squared_sech, _ONE)


@final
@dataclass(frozen=True, slots=True)
class Atan(ScalarFunction):
    """Inverse tangent."""

    @property
    def lipschitz(self) -> Upper:
        """1, attained at 0."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """Inverse tangent."""
        return np.arctan(x)

    def image(self, box: Interval) -> Interval:
        """Monotone."""
        return expected_sign(box, box.monotone(np.arctan))

    def derivative(self, box: Interval) -> Interval:
        """1 / (1 + x²): even, with a single maximum 1 at 0."""
        return _bell(box, lambda x: (_ONE + x * x).reciprocal(), _ONE)


@final
@dataclass(frozen=True, slots=True)
class Softplus(ScalarFunction):
    """ln(1 + e^x).

    Frameworks return x itself above a guard against overflow, of 15 or more: the bounds hold for
    both, the guarded function and the smooth one.
    """

    @property
    def lipschitz(self) -> Upper:
        """1, approached for large x."""
        return ONE

    @property
    def origin(self) -> Upper:
        """ln 2."""
        return _LN_2.max_abs()

    def value(self, x: FloatArray) -> FloatArray:
        """ln(1 + e^x)."""
        return np.logaddexp(0.0, x)

    def image(self, box: Interval) -> Interval:
        """Monotone; near the guard and from there on, x ≤ ln(1 + e^x) is below both.

        Proof: an argument below 14 gives less than ln(1 + e^14) < 15, which both are from 15 on.
        """
        smooth = box.monotone(self.value).clip(0.0, math.inf)
        return Interval(np.where(box.lo >= _GUARD - 1.0, box.lo, smooth.lo), smooth.hi)

    def derivative(self, box: Interval) -> Interval:
        """σ(x), which rises; from the guard on 1 may be reached."""
        smooth = logistic(box)
        return Interval(smooth.lo, np.where(box.hi >= _GUARD, 1.0, smooth.hi))


@final
@dataclass(frozen=True, slots=True)
class Softsign(ScalarFunction):
    """x / (1 + |x|)."""

    @property
    def lipschitz(self) -> Upper:
        """1, attained at 0."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """x / (1 + |x|), written so that infinite x gives ±1."""
        with np.errstate(divide="ignore", over="ignore"):
            return np.sign(x) / (1.0 + 1.0 / np.abs(x))

    def image(self, box: Interval) -> Interval:
        """Monotone."""
        return expected_sign(box, box.monotone(self.value).clip(-1.0, 1.0))

    def derivative(self, box: Interval) -> Interval:
        """1 / (1 + |x|)²: even, with a single maximum 1 at 0."""
        return _bell(box, _softsign_slope, _ONE)


@final
@dataclass(frozen=True, slots=True)
class Erf(ScalarFunction):
    """The error function."""

    @property
    def lipschitz(self) -> Upper:
        """2/√π, attained at 0."""
        return _TWO_OVER_ROOT_PI.max_abs()

    def value(self, x: FloatArray) -> FloatArray:
        """erf x."""
        return erf(x)

    def image(self, box: Interval) -> Interval:
        """Monotone; `erf` errs by far less than 64 ulp."""
        return expected_sign(box, box.monotone(self.value, _ERF_ULPS).clip(-1.0, 1.0))

    def derivative(self, box: Interval) -> Interval:
        """(2/√π)·e^{−x²}: even, with a single maximum at 0."""
        return _bell(box, lambda x: exponential(-(x * x)) * _TWO_OVER_ROOT_PI, _TWO_OVER_ROOT_PI)


def _softsign_slope(x: Interval) -> Interval:
    root = (_ONE + x.absolute()).reciprocal()
    return root * root


@final
@dataclass(frozen=True, slots=True)
class Sin(ScalarFunction):
    """sin x."""

    @property
    def lipschitz(self) -> Upper:
        """1, attained at 0."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """sin x."""
        return np.sin(x)

    def image(self, box: Interval) -> Interval:
        """A wave with a crest at π/2."""
        return _wave(box, np.sin, _PI * constant(0.5))

    def derivative(self, box: Interval) -> Interval:
        """cos x."""
        return _wave(box, np.cos, _ZERO)


@final
@dataclass(frozen=True, slots=True)
class Cos(ScalarFunction):
    """cos x."""

    @property
    def lipschitz(self) -> Upper:
        """1, attained at π/2."""
        return ONE

    @property
    def origin(self) -> Upper:
        """1."""
        return ONE

    def value(self, x: FloatArray) -> FloatArray:
        """cos x."""
        return np.cos(x)

    def image(self, box: Interval) -> Interval:
        """A wave with a crest at 0."""
        return _wave(box, np.cos, _ZERO)

    def derivative(self, box: Interval) -> Interval:
        """−sin x."""
        return -_wave(box, np.sin, _PI * constant(0.5))


def _wave(box: Interval, function: Callable[[FloatArray], FloatArray], crest: Interval) -> Interval:
    """Range of sin or cos, which has crests at crest + 2πk, troughs half a period on.

    numpy's sin and cos err by less than 2^-50. A box with an infinite end holds both extremes.
    """
    finite = box.clip(-np.finfo(np.float64).max, np.finfo(np.float64).max)
    ends = [function(finite.lo), function(finite.hi)]
    lo = np.where(_holds(box, crest + _PI), -1.0, np.minimum(*ends) - _WAVE_ERROR)
    hi = np.where(_holds(box, crest), 1.0, np.maximum(*ends) + _WAVE_ERROR)
    return Interval(lo, hi).clip(-1.0, 1.0)


def _holds(box: Interval, place: Interval) -> npt.NDArray[np.bool_]:
    """Whether the box may hold place + 2πk for an integer k."""
    turns = (box - place) * (_PI * constant(2.0)).reciprocal()
    held: npt.NDArray[np.bool_] = np.floor(turns.hi) >= np.ceil(turns.lo)
    return held
