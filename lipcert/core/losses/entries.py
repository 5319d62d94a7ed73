"""Losses of every output by itself, and of the direction of all."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, divide_up, multiply_up, sqrt_down, sqrt_up
from lipcert.core.exponential import exp_bounds
from lipcert.core.interval import Array
from lipcert.core.losses.parameters import Parameters, flag, is_mean, not_negative, positive
from lipcert.core.rules.facts import Cotangent, Fact, root_up

_SATURATED: Final = 64.0
_SINGLE_EXPONENTIALS: Final = 1 << 12
_LARGEST: Final = 1e100


def binary_cross_entropy(parameters: Parameters, logits: Fact, outputs: int) -> Cotangent:
    """(σ(z_i/τ) − t_i)/τ, t_i in [0, 1].

    Proof: |σ(z) − t| ≤ σ(|z|). Entry by entry on the box. On a ball of radius R: g(s) = σ(√s)² is
    concave, since g' = σ²(1 − σ)/z at z = √s has the logarithmic derivative 2 − 3σ − 1/z < 0
    (2 − 3σ ≤ ½ and 1/z > 1 for z < 1; 2 − 3σ < 0 for z ≥ 1); so Σ g(z_i²) ≤ n·g(R²/n).
    Attained: on a box symmetric about 0, on a ball, and in the limit of large outputs.
    """
    temperature = positive(parameters, "temperature")
    radius = divide_up(divide_up(logits.norm, sqrt_down(float(outputs))), temperature)
    square = outputs * _sigmoid(radius) ** 2
    magnitudes = [divide_up(x, temperature) for x in _distinct(logits.box.magnitude())]
    copies = Fraction(outputs, len(magnitudes))
    square = min(square, copies * sum(_sigmoid(x) ** 2 for x in magnitudes))
    return _reduced(parameters, divide_up(sqrt_up(square), temperature), outputs)


def squared_error(parameters: Parameters, logits: Fact, outputs: int) -> Cotangent:
    """2(z − y), ‖y‖ ≤ label_norm; z − y if half: the triangle inequality."""
    distance = add_up(logits.norm, not_negative(parameters, "label_norm"))
    factor = 1.0 if flag(parameters, "half") else 2.0
    return _reduced(parameters, multiply_up(factor, distance), outputs)


def absolute_error(parameters: Parameters, logits: Fact, outputs: int) -> Cotangent:
    """Entries in [−1, 1]. Attained: where no output equals its label."""
    del logits
    return _reduced(parameters, root_up(outputs), outputs)


def huber(parameters: Parameters, logits: Fact, outputs: int) -> Cotangent:
    """clip(z − y, −δ, δ): entries in [−δ, δ], and no longer than z − y."""
    total = multiply_up(positive(parameters, "huber_delta"), root_up(outputs))
    if "label_norm" in parameters:
        total = min(total, add_up(logits.norm, not_negative(parameters, "label_norm")))
    return _reduced(parameters, total, outputs)


def cosine(parameters: Parameters, logits: Fact, outputs: int) -> Cotangent:
    """ℓ = −⟨z, y⟩/max(‖z‖, floor), ‖y‖ ≤ 1: at most 1/max(floor, inf ‖z‖).

    Proof: above the floor the gradient is −(I − uuᵀ)y/‖z‖ with u = z/‖z‖, below it −y/floor. No
    entry is nearer to 0 than its interval. Attained: for y orthogonal to the shortest output.
    """
    floor = positive(parameters, "cosine_floor") if "cosine_floor" in parameters else Fraction(0)
    nearest = np.maximum(np.maximum(logits.box.lo, -logits.box.hi), 0.0).ravel().tolist()
    square = sum(Fraction(min(x, _LARGEST)) ** 2 for x in nearest) * outputs / len(nearest)
    floor = max(floor, Fraction(sqrt_down(Fraction(square))))
    return Cotangent(divide_up(1.0, floor) if floor else math.inf)


def _distinct(magnitudes: Array) -> list[float]:
    """Entries that stand for equally many outputs; the largest for all, where they are many."""
    if magnitudes.size > _SINGLE_EXPONENTIALS:
        return [float(np.max(magnitudes))]
    return [float(x) for x in magnitudes.ravel()]


def _sigmoid(x: float) -> Fraction:
    """≥ 1/(1 + e^−x), for x ≥ 0."""
    return 1 / (1 + exp_bounds(-Fraction(x))[0]) if x <= _SATURATED else Fraction(1)


def _reduced(parameters: Parameters, total: float, terms: int) -> Cotangent:
    """Of the sum over the outputs, or of their mean."""
    return Cotangent(divide_up(total, float(terms)) if is_mean(parameters) else total)
