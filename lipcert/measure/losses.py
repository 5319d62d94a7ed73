"""The loss of every example in torch, exactly as its record defines it, with a clip of its
gradient.

Given a loss record, logits [examples, *shape] and labels as `checked_labels` returns them,
`per_example_loss` returns one number per example [examples], whose gradient `Loss.cotangent`
bounds. Nothing here reduces over the batch.
"""

from functools import singledispatch

import torch
from torch import Tensor

from lipcert.core.losses.base import ClassLoss, Loss
from lipcert.core.losses.entries import (
    AbsoluteError,
    BinaryCrossEntropy,
    Cosine,
    Huber,
    SquaredError,
)
from lipcert.core.losses.focal import Focal
from lipcert.core.losses.joint import Joint
from lipcert.core.losses.margins import (
    HingeKantorovichRubinstein,
    KantorovichRubinstein,
    MulticlassHinge,
    MultiMargin,
    NegativeLogLikelihood,
)
from lipcert.core.losses.softmax import CrossEntropy
from lipcert.core.losses.tokens import of_token, scores_of, token_share
from lipcert.core.program import Shape
from lipcert.errors import NoVerdictError
from lipcert.measure.lowering.functions import SOFTPLUS_GUARD, functional, with_clipped_cotangent


def per_example_loss(
    loss: Loss, logits: Tensor, labels: Tensor, clip: float | None = None
) -> Tensor:
    """Return ℓ of each example: [examples]; its gradient ∂ℓ/∂logits is clipped to the norm `clip`.

    Args:
        labels: on the device of the logits. For a loss over several classes, class numbers
            [examples] or [examples, tokens]; otherwise targets of the shape of the logits; for
            several outputs, a matrix (see `checked_labels`).
    """
    if len(labels) != len(logits):
        raise NoVerdictError(f"{len(labels)} labels for {len(logits)} examples: give one for each")
    if clip is not None:
        logits = with_clipped_cotangent(logits, clip)
    z = logits if logits.dim() == 2 else logits.unsqueeze(-1).flatten(1)  # [examples, outputs]
    shape = tuple(logits.shape[1:])
    if not labels.dtype.is_floating_point:
        return _at(loss, shape, z, labels)
    return _at(loss, shape, z, labels.unsqueeze(-1).flatten(1).to(z.dtype))


def _at(loss: Loss, shape: Shape, z: Tensor, y: Tensor) -> Tensor:
    """Do as `_loss`, also for a loss per token of outputs of this shape: Σ_t ℓ_t, or its mean."""
    if not isinstance(loss, ClassLoss) or loss.per_token is None:
        return _loss(loss, z, y)
    scores = scores_of(loss, shape)
    if scores is None:
        raise NoVerdictError(f"outputs of shape {shape} hold no scores of tokens")
    labels = y.reshape(-1)
    own = _loss(of_token(loss), scores.apart(z), labels.clamp(min=0))
    own = torch.where(labels >= 0, own, torch.zeros_like(own))
    return own.reshape(-1, scores.tokens).sum(dim=1) / token_share(loss, scores.tokens)


@singledispatch
def _loss(loss: Loss, z: Tensor, y: Tensor) -> Tensor:
    """Return ℓ of each example.

    z: [examples, outputs]. y: class numbers [examples], or targets [examples, outputs].
    """
    del z, y
    raise NoVerdictError(
        f"the loss {loss.kind!r} ({type(loss).__name__}) cannot be replayed: it has no "
        "implementation in torch; audit with another loss"
    )


@_loss.register
def _cross_entropy(loss: CrossEntropy, z: Tensor, y: Tensor) -> Tensor:
    scores = z if loss.temperature == 1.0 else z / loss.temperature
    return functional.cross_entropy(
        scores, y, reduction="none", label_smoothing=loss.label_smoothing
    )


@_loss.register
def _negative_log_likelihood(loss: NegativeLogLikelihood, z: Tensor, y: Tensor) -> Tensor:
    del loss
    return functional.nll_loss(z, y, reduction="none")


@_loss.register
def _focal(loss: Focal, z: Tensor, y: Tensor) -> Tensor:
    """With u = ln Σ_{j≠y} e^{z_j} − z_y, −ln p_y = softplus(u) and ln(1 − p_y) = −softplus(−u)."""
    others = z.scatter(1, y.unsqueeze(1), float("-inf"))
    u = torch.logsumexp(others, dim=1) - _picked(z, y)
    return torch.exp(-loss.focal_gamma * _softplus(-u)) * _softplus(u)


@_loss.register
def _binary_cross_entropy(loss: BinaryCrossEntropy, z: Tensor, y: Tensor) -> Tensor:
    terms = functional.binary_cross_entropy_with_logits(z / loss.temperature, y, reduction="none")
    return _reduced(terms, loss.output_reduction)


@_loss.register
def _squared_error(loss: SquaredError, z: Tensor, y: Tensor) -> Tensor:
    error = _reduced((z - y) ** 2, loss.output_reduction)
    return 0.5 * error if loss.half else error


@_loss.register
def _absolute_error(loss: AbsoluteError, z: Tensor, y: Tensor) -> Tensor:
    return _reduced(torch.abs(z - y), loss.output_reduction)


@_loss.register
def _huber(loss: Huber, z: Tensor, y: Tensor) -> Tensor:
    terms = functional.huber_loss(z, y, reduction="none", delta=loss.huber_delta)
    return _reduced(terms, loss.output_reduction)


@_loss.register
def _multiclass_hinge(loss: MulticlassHinge, z: Tensor, y: Tensor) -> Tensor:
    return _hinge(loss.margin, loss.output_reduction, z, y)


@_loss.register
def _multi_margin(loss: MultiMargin, z: Tensor, y: Tensor) -> Tensor:
    gaps = torch.relu(loss.margin - _picked(z, y).unsqueeze(1) + z)
    return _reduced(gaps * (1.0 - _one_hot(z, y)), loss.output_reduction)


@_loss.register
def _kantorovich_rubinstein(loss: KantorovichRubinstein, z: Tensor, y: Tensor) -> Tensor:
    del loss
    return _kr(z, y)


@_loss.register
def _hinge_kantorovich_rubinstein(loss: HingeKantorovichRubinstein, z: Tensor, y: Tensor) -> Tensor:
    hinge = _hinge(loss.margin, "mean", z, y)
    return _kr(z, y) + loss.hkr_weight * hinge


@_loss.register
def _joint(loss: Joint, z: Tensor, y: Tensor) -> Tensor:
    """Return Σ weight·ℓ of the parts; class numbers stand among the targets as plain numbers."""
    total = torch.zeros(len(z), dtype=z.dtype, device=z.device)
    for part, entries, own in zip(loss.parts, loss.slices, loss.label_slices, strict=True):
        label = y[:, own]
        if part.is_of_classes:
            label = label.long() if part.label_size > 1 else label[:, 0].long()
        total = total + part.weight * _at(part.loss, part.shape, z[:, entries], label)
    return total


@_loss.register
def _cosine(loss: Cosine, z: Tensor, y: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(z, dim=1)
    if loss.cosine_floor is not None:
        lengths = torch.clamp(lengths, min=loss.cosine_floor)
    return -(z * y).sum(dim=1) / lengths


def _hinge(margin: float, reduction: str, z: Tensor, y: Tensor) -> Tensor:
    """Return the hinge of every class; in the mean, the label weighs as much as all other
    classes."""
    if y.dim() == 2:
        return torch.relu(0.5 * margin - y * z).sum(dim=1)
    is_label = _one_hot(z, y)
    hinges = torch.relu(0.5 * margin + (1.0 - 2.0 * is_label) * z)
    if reduction == "sum":
        return hinges.sum(dim=1)
    classes = z.shape[1]
    return (hinges * (1.0 + (classes - 2.0) * is_label)).sum(dim=1) / classes


def _kr(z: Tensor, y: Tensor) -> Tensor:
    """Return the mean score of the other classes minus that of the label."""
    if y.dim() == 2:
        return -(y * z).sum(dim=1)
    is_label = _one_hot(z, y)
    return (z * (1.0 - is_label)).sum(dim=1) / (z.shape[1] - 1) - (z * is_label).sum(dim=1)


def _picked(z: Tensor, y: Tensor) -> Tensor:
    """Return the score of the label: [examples]."""
    return z.gather(1, y.unsqueeze(1)).squeeze(1)


def _one_hot(z: Tensor, y: Tensor) -> Tensor:
    """Return 1 at the label, 0 elsewhere: [examples, classes]."""
    return torch.zeros_like(z).scatter(1, y.unsqueeze(1), 1.0)


def _softplus(x: Tensor) -> Tensor:
    return functional.softplus(x, threshold=SOFTPLUS_GUARD)


def _reduced(terms: Tensor, reduction: str) -> Tensor:
    """Reduce [examples, outputs] to [examples]."""
    return terms.mean(dim=1) if reduction == "mean" else terms.sum(dim=1)
