"""Negative log-likelihood: a loss of log-probabilities, as a network has them behind LogSoftmax.

What enters: facts about the outputs. What leaves: a norm bound, and that the gradient is a
multiple of one −e_y, from which the rule of LogSoftmax finds p − e_y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import Bound, CotangentFacts, ValueFacts
from lipcert.losses.base import Loss, LossRecord, class_axis, no_class_axis
from lipcert.upper import ONE, FloatArray


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

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B = ‖∂ℓ/∂z‖₂ = 1, and that the gradient is −e_y.

        Hypotheses: one vector of K scores; the label is one of the K classes; all classes weigh 1.
        Proof: ℓ is linear in z with the gradient −e_y, whatever the outputs are.
        Attained: always.
        """
        rule = "loss.nll"
        if class_axis(logits.shape) is None:
            return CotangentFacts(no_class_axis(rule, logits.shape))
        return CotangentFacts(Bound(ONE, rule), label=ONE)

    def gradients(self, logits: FloatArray) -> FloatArray:
        """−e_y for every label y."""
        classes = logits[0].size
        unit = np.broadcast_to(-np.eye(classes)[:, np.newaxis], (classes, len(logits), classes))
        return np.array(unit).reshape(classes, *logits.shape)
