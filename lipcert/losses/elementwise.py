"""Losses that add one term per output: binary cross-entropy, MSE, MAE, Huber.

What enters: facts about the outputs of one example. What leaves: a norm bound of the gradient; n
is the number of outputs, and a mean over them divides it by n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.facts import Bound, CotangentFacts, ValueFacts, no_bound
from lipcert.interval import Interval
from lipcert.losses.base import (
    Loss,
    LossRecord,
    OutputReduction,
    require_nonnegative,
    require_positive,
)
from lipcert.upper import ONE, FloatArray, Lower, Upper, norm

_EXP_ULPS: Final = 8


@final
@dataclass(frozen=True, slots=True)
class BinaryCrossEntropy(Loss):
    """ℓ = Σ_i −t_i·log σ(z_i/τ) − (1 − t_i)·log(1 − σ(z_i/τ)), t_i in [0, 1]; or its mean."""

    temperature: float = 1.0
    reduction: OutputReduction = OutputReduction.MEAN

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "bce"

    def parameters(self) -> LossRecord:
        """Temperature and reduction over the outputs."""
        return {"temperature": self.temperature, "output_reduction": self.reduction.value}

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B with B ≥ sup ‖σ(z/τ) − t‖₂/τ; √n/τ for unbounded logits (summed).

        Hypotheses: every label t_i is in [0, 1].
        Proof: |σ(z) − t| ≤ max(σ(z), σ(−z)) = σ(|z|) ≤ 1. On a box, entry by entry. On a ball of
        radius R, g(s) = σ(√s)² is concave, because g' = σ²(1 − σ)/z at z = √s has logarithmic
        derivative 2 − 3σ − 1/z < 0 (2 − 3σ ≤ ½ < 1/z while z < 1, and 2 − 3σ < 0 from there);
        so Σ g(z_i²) ≤ n·g(R²/n), that is ‖·‖ ≤ √n·σ(R/√n).
        Attained: on a box symmetric about 0, on a ball, and in the limit without bounds.
        """
        slope = ONE.over(Lower(self.temperature))
        root = Upper(float(logits.size)).sqrt()
        radius = logits.norm.value.over(Lower(float(logits.size)).sqrt()) * slope
        by_ball = root * Upper(float(_sigmoid(np.asarray(radius.value))))
        magnitude = Interval.exact(logits.box.magnitude()) * Interval.exact(np.asarray(slope.value))
        by_box = norm(np.broadcast_to(_sigmoid(magnitude.hi), logits.shape))
        total = min(root, by_ball, by_box) * slope
        return CotangentFacts(Bound(self.reduction.applied(total, logits.size), "loss.bce"))

    def gradients(self, logits: FloatArray) -> FloatArray:
        """(σ(z/τ) − t)/τ for the labels that are most wrong: 1 where z < 0, otherwise 0."""
        wrong = _sigmoid(np.abs(logits) / self.temperature) * np.where(logits < 0.0, -1.0, 1.0)
        terms = logits[0].size if self.reduction is OutputReduction.MEAN else 1
        gradient: FloatArray = wrong / (self.temperature * terms)
        return gradient[np.newaxis]


@final
@dataclass(frozen=True, slots=True)
class SquaredError(Loss):
    """ℓ = Σ_i (z_i − y_i)², or its mean; times ½ if `half`. Labels have ‖y‖₂ ≤ label_norm."""

    label_norm: float
    reduction: OutputReduction = OutputReduction.MEAN
    half: bool = False

    def __post_init__(self) -> None:
        require_nonnegative("label-norm", self.label_norm)

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "mse"

    def parameters(self) -> LossRecord:
        """Label bound, reduction over the outputs, and whether ½ stands in front."""
        return {
            "label_norm": self.label_norm,
            "output_reduction": self.reduction.value,
            "half": self.half,
        }

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B with B ≥ sup 2‖z − y‖₂ (1 instead of 2 with `half`, divided by n for a mean).

        Hypotheses: ‖y‖₂ ≤ label_norm; the output norm is bounded.
        Proof: the triangle inequality, ‖z − y‖ ≤ ‖z‖ + ‖y‖.
        Attained: when the output reaches its norm opposite to the label.
        """
        distance = logits.norm.value + Upper(self.label_norm)
        total = distance if self.half else Upper(2.0) * distance
        if not total.is_finite:
            return CotangentFacts(_needs_output_norm("loss.mse", logits.norm))
        return CotangentFacts(Bound(self.reduction.applied(total, logits.size), "loss.mse"))

    def gradients(self, logits: FloatArray) -> FloatArray:
        """2(z − y) at y = −label_norm·z/‖z‖; 1 instead of 2 with `half`, over n for a mean."""
        flat = logits.reshape(len(logits), -1)
        length = np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        terms = flat.shape[1] if self.reduction is OutputReduction.MEAN else 1
        slope = (1.0 if self.half else 2.0) / terms
        gradient: FloatArray = slope * (flat + self.label_norm * (flat / length))
        return gradient.reshape(1, *logits.shape)


@final
@dataclass(frozen=True, slots=True)
class AbsoluteError(Loss):
    """ℓ = Σ_i |z_i − y_i|, or its mean."""

    reduction: OutputReduction = OutputReduction.MEAN

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "mae"

    def parameters(self) -> LossRecord:
        """Reduction over the outputs."""
        return {"output_reduction": self.reduction.value}

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B with B ≥ sup ‖∂ℓ/∂z‖₂ = √n (1/√n for a mean).

        Hypotheses: none; the bound holds for every subgradient at 0.
        Proof: each entry of the gradient is in [−1, 1].
        Attained: whenever no output equals its label.
        """
        total = Upper(float(logits.size)).sqrt()
        return CotangentFacts(Bound(self.reduction.applied(total, logits.size), "loss.mae"))


@final
@dataclass(frozen=True, slots=True)
class Huber(Loss):
    """ℓ = Σ_i ½d_i² where |d_i| ≤ δ, δ(|d_i| − ½δ) elsewhere, d = z − y; or its mean.

    Labels have ‖y‖₂ ≤ label_norm, where that is known.
    """

    huber_delta: float = 1.0
    label_norm: float | None = None
    reduction: OutputReduction = OutputReduction.MEAN

    def __post_init__(self) -> None:
        require_positive("huber-delta", self.huber_delta)
        if self.label_norm is not None:
            require_nonnegative("label-norm", self.label_norm)

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "huber"

    def parameters(self) -> LossRecord:
        """Threshold, reduction over the outputs, and the label bound if given."""
        label = {} if self.label_norm is None else {"label_norm": self.label_norm}
        return {
            "huber_delta": self.huber_delta,
            "output_reduction": self.reduction.value,
            **label,
        }

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B with B ≥ sup ‖clip(z − y, −δ, δ)‖₂ (divided by n for a mean).

        Hypotheses: ‖y‖₂ ≤ label_norm, if that is used.
        Proof: the entries are in [−δ, δ], hence δ√n; clipping shrinks, hence ‖z‖ + ‖y‖.
        Attained: δ√n, when every error exceeds δ.
        """
        total = Upper(self.huber_delta) * Upper(float(logits.size)).sqrt()
        if self.label_norm is not None:
            total = min(total, logits.norm.value + Upper(self.label_norm))
        return CotangentFacts(Bound(self.reduction.applied(total, logits.size), "loss.huber"))


def _sigmoid(array: FloatArray) -> FloatArray:
    """Upper bound of σ, entry by entry; 1 at infinity."""
    decay = (-Interval.exact(array)).monotone(np.exp, _EXP_ULPS)
    return (Interval.exact(np.asarray(1.0)) + decay).reciprocal().clip(0.0, 1.0).hi


def _needs_output_norm(rule: str, output: Bound) -> Bound:
    return no_bound(
        rule,
        "the gradient of this loss grows with the output, which has no norm bound: "
        f"{output.reason or 'the bound overflows'}",
        output.remedy or "bound the output, or use a loss with bounded gradient (mae, huber)",
    )
