"""Losses as users ask for them, and gradients of them to try bounds out, which the core derives.

What enters: the kind and the parameters of a loss as a user states them; None means "not given".
What leaves: a valid `Loss`, or a `UsageError` that says what is wrong and what would be right. A
parameter that the loss does not have is an error: silence would certify another loss.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, Final

import numpy as np

from lipcert.choices import LOSSES, check_choice
from lipcert.core.losses.base import Loss, loss_class, parameters_of
from lipcert.core.losses.entries import BinaryCrossEntropy, SquaredError
from lipcert.core.losses.margins import NegativeLogLikelihood
from lipcert.core.losses.softmax import CrossEntropy
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import FloatArray
from lipcert.errors import UsageError

_BATCH_WEIGHTED: Final = frozenset({"kr-batch", "hkr-batch"})


def make_loss(kind: str, **given: Any) -> Loss:
    """The loss of this kind; parameters that are not given have the default of its class."""
    if kind in _BATCH_WEIGHTED:
        raise UsageError(
            f"loss: {kind} weights each example by the class counts of its batch, so replacing one "
            "example changes the gradients of all others and no per-example bound exists (it grows "
            f"with the batch size); use {kind.removesuffix('-batch')}, which has constant weights"
        )
    check_choice("loss", kind, LOSSES[1:])
    known = parameters_of(kind)
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name in known:
            continue
        allowed = ", ".join(sorted(item.replace("_", "-") for item in known))
        takes = f"takes {allowed}" if allowed else "has no parameter"
        raise UsageError(f"{name.replace('_', '-')}: the loss {kind} {takes}")
    for name, is_optional in known.items():
        if not is_optional and name not in given:
            option = name.replace("_", "-")
            raise UsageError(f"{option}: the loss {kind} needs it; give --{option}")
    try:
        return loss_class(kind)(**given)
    except Unsupported as error:
        raise UsageError(str(error)) from None


@singledispatch
def worst_gradients(loss: Loss, logits: FloatArray) -> FloatArray | None:
    """∂loss/∂logits in float64 for logits [examples, *shape]: [labels, examples, *shape].

    For some admissible labels, the worst among them. None: not known.
    """
    del loss, logits
    return None


@worst_gradients.register
def _cross_entropy(loss: CrossEntropy, logits: FloatArray) -> FloatArray:
    """(softmax(z/τ) − t_y)/τ for every label y."""
    scores = logits.reshape(len(logits), -1) / loss.temperature
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    softmax = odds / odds.sum(axis=1, keepdims=True)
    classes = scores.shape[1]
    targets = (1.0 - loss.label_smoothing) * np.eye(classes) + loss.label_smoothing / classes
    errors: FloatArray = (softmax - targets[:, np.newaxis]) / loss.temperature
    return errors.reshape(classes, *logits.shape)


@worst_gradients.register
def _likelihood(loss: NegativeLogLikelihood, logits: FloatArray) -> FloatArray:
    """−e_y for every label y."""
    del loss
    classes = logits[0].size
    unit = np.broadcast_to(-np.eye(classes)[:, np.newaxis], (classes, len(logits), classes))
    return np.array(unit).reshape(classes, *logits.shape)


@worst_gradients.register
def _binary_cross_entropy(loss: BinaryCrossEntropy, logits: FloatArray) -> FloatArray:
    """(σ(z/τ) − t)/τ for the labels that are most wrong: 1 where z < 0, otherwise 0."""
    error = 1.0 / (1.0 + np.exp(-np.abs(logits) / loss.temperature))
    wrong = error * np.where(logits < 0.0, -1.0, 1.0)
    terms = logits[0].size if loss.output_reduction == "mean" else 1
    gradient: FloatArray = wrong / (loss.temperature * terms)
    return gradient[np.newaxis]


@worst_gradients.register
def _squared_error(loss: SquaredError, logits: FloatArray) -> FloatArray:
    """2(z − y) at y = −label_norm·z/‖z‖; 1 instead of 2 with `half`, over n for a mean."""
    flat = logits.reshape(len(logits), -1)
    length = np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    terms = flat.shape[1] if loss.output_reduction == "mean" else 1
    slope = (1.0 if loss.half else 2.0) / terms
    gradient: FloatArray = slope * (flat + loss.label_norm * (flat / length))
    return gradient.reshape(1, *logits.shape)
