"""Losses that add one term per output: binary cross-entropy, MSE, MAE, Huber; and of directions.

A mean over n outputs divides by n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from lipcert.core.program import FloatArray
from lipcert.losses.base import (
    Loss,
    LossRecord,
    OutputReduction,
    require_nonnegative,
    require_positive,
)


@final
@dataclass(frozen=True, slots=True)
class BinaryCrossEntropy(Loss):
    """ℓ = Σ_i −t_i·log σ(z_i/τ) − (1 − t_i)·log(1 − σ(z_i/τ)), t_i in [0, 1]; or its mean."""

    kind: ClassVar[str] = "bce"
    temperature: float = 1.0
    reduction: OutputReduction = OutputReduction.MEAN

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)

    def parameters(self) -> LossRecord:
        """Temperature and reduction over the outputs."""
        return {"temperature": self.temperature, "output_reduction": self.reduction.value}

    def gradients(self, logits: FloatArray) -> FloatArray:
        """(σ(z/τ) − t)/τ for the labels that are most wrong: 1 where z < 0, otherwise 0."""
        error = 1.0 / (1.0 + np.exp(-np.abs(logits) / self.temperature))
        wrong = error * np.where(logits < 0.0, -1.0, 1.0)
        terms = logits[0].size if self.reduction is OutputReduction.MEAN else 1
        gradient: FloatArray = wrong / (self.temperature * terms)
        return gradient[np.newaxis]


@final
@dataclass(frozen=True, slots=True)
class SquaredError(Loss):
    """ℓ = Σ_i (z_i − y_i)², or its mean; times ½ if `half`. Labels have ‖y‖₂ ≤ label_norm."""

    kind: ClassVar[str] = "mse"
    label_norm: float
    reduction: OutputReduction = OutputReduction.MEAN
    half: bool = False

    def __post_init__(self) -> None:
        require_nonnegative("label-norm", self.label_norm)

    def parameters(self) -> LossRecord:
        """Label bound, reduction over the outputs, and whether ½ stands in front."""
        return {
            "label_norm": self.label_norm,
            "output_reduction": self.reduction.value,
            "half": self.half,
        }

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

    kind: ClassVar[str] = "mae"
    reduction: OutputReduction = OutputReduction.MEAN

    def parameters(self) -> LossRecord:
        """Reduction over the outputs."""
        return {"output_reduction": self.reduction.value}


@final
@dataclass(frozen=True, slots=True)
class Huber(Loss):
    """ℓ = Σ_i ½d_i² where |d_i| ≤ δ, δ(|d_i| − ½δ) elsewhere, d = z − y; or its mean.

    Labels have ‖y‖₂ ≤ label_norm, where that is known.
    """

    kind: ClassVar[str] = "huber"
    huber_delta: float = 1.0
    label_norm: float | None = None
    reduction: OutputReduction = OutputReduction.MEAN

    def __post_init__(self) -> None:
        require_positive("huber-delta", self.huber_delta)
        if self.label_norm is not None:
            require_nonnegative("label-norm", self.label_norm)

    def parameters(self) -> LossRecord:
        """Threshold, reduction over the outputs, and the label bound if given."""
        label = {} if self.label_norm is None else {"label_norm": self.label_norm}
        return {
            "huber_delta": self.huber_delta,
            "output_reduction": self.reduction.value,
            **label,
        }


@final
@dataclass(frozen=True, slots=True)
class Cosine(Loss):
    """ℓ = −⟨z, y⟩/max(‖z‖, floor) with ‖y‖₂ ≤ 1 (plus any constant); no floor: 0."""

    kind: ClassVar[str] = "cosine"
    cosine_floor: float | None = None

    def __post_init__(self) -> None:
        if self.cosine_floor is not None:
            require_positive("cosine-floor", self.cosine_floor)

    def parameters(self) -> LossRecord:
        """The floor, if any."""
        return {} if self.cosine_floor is None else {"cosine_floor": self.cosine_floor}
