"""Smooth scalar functions: sigmoids, softplus, the error function, and the two waves.

What enters: nothing but the argument. What leaves: frozen `ScalarFunction`s. Invariant: the
derivatives of the sigmoids are even and fall with |x|, so that a box yields their exact range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.ops.error_function import erf
from lipcert.ops.scalar import (
    ScalarFunction,
    sigmoid,
)
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Sigmoid(ScalarFunction):
    """1 / (1 + e^−x)."""

    def value(self, x: FloatArray) -> FloatArray:
        """1 / (1 + e^−x)."""
        return sigmoid(x)


@final
@dataclass(frozen=True, slots=True)
class Tanh(ScalarFunction):
    """Hyperbolic tangent."""

    def value(self, x: FloatArray) -> FloatArray:
        """tanh x."""
        return np.tanh(x)


@final
@dataclass(frozen=True, slots=True)
class Atan(ScalarFunction):
    """Inverse tangent."""

    def value(self, x: FloatArray) -> FloatArray:
        """Inverse tangent."""
        return np.arctan(x)


@final
@dataclass(frozen=True, slots=True)
class Softplus(ScalarFunction):
    """ln(1 + e^x).

    Frameworks return x itself above a guard against overflow, of 15 or more: the bounds hold for
    both, the guarded function and the smooth one.
    """

    def value(self, x: FloatArray) -> FloatArray:
        """ln(1 + e^x)."""
        return np.logaddexp(0.0, x)


@final
@dataclass(frozen=True, slots=True)
class Softsign(ScalarFunction):
    """x / (1 + |x|)."""

    def value(self, x: FloatArray) -> FloatArray:
        """x / (1 + |x|), written so that infinite x gives ±1."""
        with np.errstate(divide="ignore", over="ignore"):
            return np.sign(x) / (1.0 + 1.0 / np.abs(x))


@final
@dataclass(frozen=True, slots=True)
class Erf(ScalarFunction):
    """The error function."""

    def value(self, x: FloatArray) -> FloatArray:
        """erf x."""
        return erf(x)


@final
@dataclass(frozen=True, slots=True)
class Sin(ScalarFunction):
    """sin x."""

    def value(self, x: FloatArray) -> FloatArray:
        """sin x."""
        return np.sin(x)


@final
@dataclass(frozen=True, slots=True)
class Cos(ScalarFunction):
    """cos x."""

    def value(self, x: FloatArray) -> FloatArray:
        """cos x."""
        return np.cos(x)
