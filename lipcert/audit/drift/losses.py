"""Local errors of losses: by how much ∂loss/∂logits, as computed, is off at the computed logits.

What enters: a loss, facts about the computed logits, a precision. What leaves: a bound of
‖fl(∇ℓ(z)) − ∇ℓ(z)‖; at kinks ∇ℓ is any of the subgradients that `Loss.cotangent` admits. Labels are
those that are used after their own rounding, unless their norm enters the bound.
"""

from __future__ import annotations

import math
from functools import singledispatch

from lipcert.audit.drift.rounding import Rounding, joined, root
from lipcert.audit.drift.softmax import log_share_error
from lipcert.facts import ValueFacts
from lipcert.losses.base import Loss
from lipcert.losses.cosine import Cosine
from lipcert.losses.cross_entropy import CrossEntropy, Focal
from lipcert.losses.elementwise import AbsoluteError, BinaryCrossEntropy, Huber, SquaredError
from lipcert.losses.likelihood import NegativeLogLikelihood
from lipcert.losses.margin import (
    HingeKantorovichRubinstein,
    KantorovichRubinstein,
    MulticlassHinge,
    MultiMargin,
)
from lipcert.upper import ONE, ZERO, Lower, Upper

_HALF = Upper(0.5)


@singledispatch
def loss_error(loss: Loss, logits: ValueFacts, rounding: Rounding) -> Upper:
    """The local error of a loss."""
    del logits, rounding
    raise TypeError(f"{type(loss).__name__} has no rule for its rounding errors")


@loss_error.register
def _cross_entropy(loss: CrossEntropy, logits: ValueFacts, rounding: Rounding) -> Upper:
    """(p − t)/τ with p = e^(ln p), rounded a few times; z/τ moves p by half of its own error."""
    shares = log_share_error(logits.size, rounding) + Upper(2.0) * rounding.stored(4)
    return (shares + _tempered(loss.temperature, _HALF, logits, rounding)) * _over(loss.temperature)


@loss_error.register
def _negative_log_likelihood(
    loss: NegativeLogLikelihood, logits: ValueFacts, rounding: Rounding
) -> Upper:
    """The gradient is −1 at the label and 0 elsewhere, exactly."""
    del loss, logits, rounding
    return ZERO


@loss_error.register
def _focal(loss: Focal, logits: ValueFacts, rounding: Rounding) -> Upper:
    """g'(u)·∂u with u = ln Σ_{j≠y} e^{z_j} − z_y and g(u) = e^(−γ·softplus(−u))·softplus(u).

    Both g' and its slope are at most (1 + γ)²; u is off by roundings of the scores, ∂u = (p, −1)
    by those of a softmax, and the products of g' by a few units of γ.
    """
    gamma = Upper(loss.focal_gamma)
    steep = (ONE + gamma) * (ONE + gamma)
    around = logits.max_abs * Upper(4.0) + Upper(4.0 + math.log(max(logits.size, 1)))
    shares = log_share_error(logits.size, rounding)
    rounded = rounding.stored(4) * around + rounding.stored(16) * (ONE + gamma)
    return Upper(2.0) * steep * (rounded + shares)


@loss_error.register
def _binary_cross_entropy(
    loss: BinaryCrossEntropy, logits: ValueFacts, rounding: Rounding
) -> Upper:
    """σ(z/τ) − t is off by a few units of 1 at each entry; z/τ moves σ by a quarter of its own."""
    entries = (rounding.stored(4) + rounding.inside().stored(8)) * root(logits.size)
    off = entries + _tempered(loss.temperature, Upper(0.25), logits, rounding)
    return loss.reduction.applied(off * _over(loss.temperature), logits.size)


@loss_error.register
def _squared(loss: SquaredError, logits: ValueFacts, rounding: Rounding) -> Upper:
    """A few units of ‖z‖ + ‖y‖."""
    return rounding.stored(12) * loss.cotangent(logits).norm.value


@loss_error.register
def _absolute(loss: AbsoluteError, logits: ValueFacts, rounding: Rounding) -> Upper:
    """Signs are exact; the mean is not."""
    return rounding.stored(8) * loss.cotangent(logits).norm.value


@loss_error.register
def _huber(loss: Huber, logits: ValueFacts, rounding: Rounding) -> Upper:
    """A few units of the gradient, and of the label where its norm enters the bound."""
    label = ZERO if loss.label_norm is None else rounding.stored(2) * Upper(loss.label_norm)
    label = loss.reduction.applied(label, logits.size)
    return rounding.stored(12) * loss.cotangent(logits).norm.value + label


@loss_error.register(MulticlassHinge)
@loss_error.register(MultiMargin)
@loss_error.register(KantorovichRubinstein)
@loss_error.register(HingeKantorovichRubinstein)
def _margins(
    loss: MulticlassHinge | MultiMargin | KantorovichRubinstein | HingeKantorovichRubinstein,
    logits: ValueFacts,
    rounding: Rounding,
) -> Upper:
    """Constants and sums of constants of one sign; whichever hinges are open, the bound holds."""
    relative = joined(rounding.summed(2 * logits.size + 8), rounding.stored(16))
    return relative * loss.cotangent(logits).norm.value


@loss_error.register
def _cosine(loss: Cosine, logits: ValueFacts, rounding: Rounding) -> Upper:
    """−y/‖z‖ and z·(zᵀy)/‖z‖³, each of norm at most that of the bound, with norms of n entries."""
    relative = joined(rounding.summed(4 * logits.size + 8), rounding.stored(24))
    return Upper(4.0) * relative * loss.cotangent(logits).norm.value


def _over(temperature: float) -> Upper:
    return ONE.over(Lower(temperature))


def _tempered(temperature: float, slope: Upper, logits: ValueFacts, rounding: Rounding) -> Upper:
    """What rounding z/τ moves: slope·‖δ(z/τ)‖; no rounding for τ = 1."""
    if temperature == 1.0:
        return ZERO
    return slope * rounding.stored(3) * logits.norm.value * _over(temperature)
