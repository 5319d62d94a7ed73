"""Losses of every output by itself, and of the direction of all. A mean over n divides by n."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, divide_up, multiply_up, sqrt_down, sqrt_up
from lipcert.core.exponential import exp_bounds
from lipcert.core.interval import Array
from lipcert.core.losses.base import Flag, Loss, NotNegative, Positive, Terms
from lipcert.core.rules.facts import Cotangent, Fact, root_up

_SATURATED: Final = 64.0
_SINGLE_EXPONENTIALS: Final = 1 << 12
_LARGEST: Final = 1e100


@dataclass(frozen=True, slots=True)
class BinaryCrossEntropy(Loss):
    """ℓ = Σ_i −t_i·log σ(z_i/τ) − (1 − t_i)·log(1 − σ(z_i/τ)), t_i in [0, 1]; or its mean."""

    temperature: Positive = 1.0
    output_reduction: Terms = "mean"

    def bound(self, logits: Fact, outputs: int) -> Cotangent:
        """(σ(z_i/τ) − t_i)/τ, t_i in [0, 1].

        Proof: |σ(z) − t| ≤ σ(|z|). Entry by entry on the box. On a ball of radius R: g(s) = σ(√s)²
        is concave, since g' = σ²(1 − σ)/z at z = √s has the logarithmic derivative 2 − 3σ − 1/z < 0
        (2 − 3σ ≤ ½ and 1/z > 1 for z < 1; 2 − 3σ < 0 for z ≥ 1); so Σ g(z_i²) ≤ n·g(R²/n).
        Attained: on a box symmetric about 0, on a ball, and in the limit of large outputs.
        """
        temperature = self.temperature
        radius = divide_up(divide_up(logits.norm, sqrt_down(float(outputs))), temperature)
        square = outputs * _sigmoid(radius) ** 2
        magnitudes = [divide_up(x, temperature) for x in _distinct(logits.box.magnitude())]
        copies = Fraction(outputs, len(magnitudes))
        square = min(square, copies * sum(_sigmoid(x) ** 2 for x in magnitudes))
        return _reduced(divide_up(sqrt_up(square), temperature), self.output_reduction, outputs)


@dataclass(frozen=True, slots=True)
class SquaredError(Loss):
    """ℓ = Σ_i (z_i − y_i)², or its mean; times ½ if `half`. Labels have ‖y‖₂ ≤ label_norm."""

    label_norm: NotNegative
    output_reduction: Terms = "mean"
    half: Flag = False

    def bound(self, logits: Fact, outputs: int) -> Cotangent:
        """2(z − y), ‖y‖ ≤ label_norm; z − y if half: the triangle inequality."""
        factor = 1.0 if self.half else 2.0
        distance = add_up(logits.norm, self.label_norm)
        return _reduced(multiply_up(factor, distance), self.output_reduction, outputs)


@dataclass(frozen=True, slots=True)
class AbsoluteError(Loss):
    """ℓ = Σ_i |z_i − y_i|, or its mean."""

    output_reduction: Terms = "mean"

    def bound(self, _: Fact, outputs: int) -> Cotangent:
        """Entries in [−1, 1]. Attained: where no output equals its label."""
        return _reduced(root_up(outputs), self.output_reduction, outputs)


@dataclass(frozen=True, slots=True)
class Huber(Loss):
    """ℓ = Σ_i ½d_i² where |d_i| ≤ δ, δ(|d_i| − ½δ) elsewhere, d = z − y; or its mean.

    Labels have ‖y‖₂ ≤ label_norm, where that is known.
    """

    huber_delta: Positive = 1.0
    output_reduction: Terms = "mean"
    label_norm: NotNegative | None = None

    def bound(self, logits: Fact, outputs: int) -> Cotangent:
        """clip(z − y, −δ, δ): entries in [−δ, δ], and no longer than z − y."""
        total = multiply_up(self.huber_delta, root_up(outputs))
        if self.label_norm is not None:
            total = min(total, add_up(logits.norm, self.label_norm))
        return _reduced(total, self.output_reduction, outputs)


@dataclass(frozen=True, slots=True)
class Cosine(Loss):
    """ℓ = −⟨z, y⟩/max(‖z‖, floor) with ‖y‖₂ ≤ 1 (plus any constant); no floor: 0."""

    cosine_floor: Positive | None = None

    def bound(self, logits: Fact, outputs: int) -> Cotangent:
        """At most 1/max(floor, inf ‖z‖).

        Proof: above the floor the gradient is −(I − uuᵀ)y/‖z‖ with u = z/‖z‖, below it −y/floor. No
        entry is nearer to 0 than its interval. Attained: for y orthogonal to the shortest output.
        """
        nearest = np.maximum(np.maximum(logits.box.lo, -logits.box.hi), 0.0).ravel().tolist()
        square = sum(Fraction(min(x, _LARGEST)) ** 2 for x in nearest) * outputs / len(nearest)
        floor = max(self.cosine_floor or 0.0, sqrt_down(Fraction(square)))
        return Cotangent(divide_up(1.0, floor) if floor else math.inf)


def _distinct(magnitudes: Array) -> list[float]:
    """Entries that stand for equally many outputs; the largest for all, where they are many."""
    if magnitudes.size > _SINGLE_EXPONENTIALS:
        return [float(np.max(magnitudes))]
    return [float(x) for x in magnitudes.ravel()]


def _sigmoid(x: float) -> Fraction:
    """≥ 1/(1 + e^−x), for x ≥ 0."""
    return 1 / (1 + exp_bounds(-Fraction(x))[0]) if x <= _SATURATED else Fraction(1)


def _reduced(total: float, reduction: str, terms: int) -> Cotangent:
    """Of the sum over the outputs, or of their mean."""
    return Cotangent(divide_up(total, float(terms)) if reduction == "mean" else total)
