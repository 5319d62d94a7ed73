"""Cross-entropy, focal loss, and the likelihood of a network that ends in a LogSoftmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from lipcert.core.program import FloatArray
from lipcert.errors import UsageError
from lipcert.losses.base import Loss, LossRecord, require_nonnegative, require_positive


@final
@dataclass(frozen=True, slots=True)
class CrossEntropy(Loss):
    """ℓ = −Σ_j t_j·log softmax(z/τ)_j with t = (1 − a)·e_y + (a/K)·1 (smoothing a)."""

    kind: ClassVar[str] = "cross-entropy"
    temperature: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UsageError(f"label-smoothing: {self.label_smoothing!r} is not in [0, 1)")

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

    kind: ClassVar[str] = "focal"
    focal_gamma: float = 2.0

    def __post_init__(self) -> None:
        require_nonnegative("focal-gamma", self.focal_gamma)

    def parameters(self) -> LossRecord:
        """The focusing exponent."""
        return {"focal_gamma": self.focal_gamma}


@final
@dataclass(frozen=True, slots=True)
class NegativeLogLikelihood(Loss):
    """ℓ = −z_y for outputs z: torch's nll_loss without weights of classes.

    Behind LogSoftmax this is the cross-entropy of the logits before it.
    """

    kind: ClassVar[str] = "nll"

    def parameters(self) -> LossRecord:
        """None."""
        return {}

    def gradients(self, logits: FloatArray) -> FloatArray:
        """−e_y for every label y."""
        classes = logits[0].size
        unit = np.broadcast_to(-np.eye(classes)[:, np.newaxis], (classes, len(logits), classes))
        return np.array(unit).reshape(classes, *logits.shape)
