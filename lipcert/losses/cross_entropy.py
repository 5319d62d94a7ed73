"""Cross-entropy and focal loss: gradients that are multiples of softmax(z) − target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import FloatArray
from lipcert.errors import UsageError
from lipcert.losses.base import Loss, LossRecord, require_nonnegative, require_positive


@final
@dataclass(frozen=True, slots=True)
class CrossEntropy(Loss):
    """ℓ = −Σ_j t_j·log softmax(z/τ)_j with t = (1 − a)·e_y + (a/K)·1 (smoothing a)."""

    temperature: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UsageError(f"label-smoothing: {self.label_smoothing!r} is not in [0, 1)")

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "cross-entropy"

    def parameters(self) -> LossRecord:
        """Temperature and smoothing."""
        return {"temperature": self.temperature, "label_smoothing": self.label_smoothing}

    def gradients(self, logits: FloatArray) -> FloatArray:
        """(softmax(z/τ) − t_y)/τ for every label y."""
        scores = logits.reshape(len(logits), -1) / self.temperature
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        softmax = odds / odds.sum(axis=1, keepdims=True)
        classes = scores.shape[1]
        targets = (1.0 - self.label_smoothing) * np.eye(classes) + self.label_smoothing / classes
        errors: FloatArray = (softmax - targets[:, np.newaxis]) / self.temperature
        return errors.reshape(classes, *logits.shape)


@final
@dataclass(frozen=True, slots=True)
class Focal(Loss):
    """ℓ = −(1 − p_y)^γ · log p_y with p = softmax(z)."""

    focal_gamma: float = 2.0

    def __post_init__(self) -> None:
        require_nonnegative("focal-gamma", self.focal_gamma)

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "focal"

    def parameters(self) -> LossRecord:
        """The focusing exponent."""
        return {"focal_gamma": self.focal_gamma}
