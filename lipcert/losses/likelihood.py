"""Negative log-likelihood: a loss of log-probabilities, as a network has them behind LogSoftmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.core.program import FloatArray
from lipcert.losses.base import Loss, LossRecord


@final
@dataclass(frozen=True, slots=True)
class NegativeLogLikelihood(Loss):
    """ℓ = −z_y for outputs z: torch's nll_loss without weights of classes.

    Behind LogSoftmax this is the cross-entropy of the logits before it.
    """

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "nll"

    def parameters(self) -> LossRecord:
        """None."""
        return {}

    def gradients(self, logits: FloatArray) -> FloatArray:
        """−e_y for every label y."""
        classes = logits[0].size
        unit = np.broadcast_to(-np.eye(classes)[:, np.newaxis], (classes, len(logits), classes))
        return np.array(unit).reshape(classes, *logits.shape)
