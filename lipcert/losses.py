"""Losses as users specify them, and their gradients in float64, to test bounds of the core.

`make_loss` takes the kind and the parameters of a loss as a user states them; None means "not
given". It returns a valid `Loss`, or raises a `UsageError` that says what is wrong and what would
be right. A parameter that the loss does not have is an error: ignoring it would certify another
loss.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias, cast

import numpy as np

from lipcert.core.ledger.premises import LossPart
from lipcert.core.losses.base import ClassLoss, Loss, loss_class, parameters_of
from lipcert.core.losses.entries import (
    AbsoluteError,
    BinaryCrossEntropy,
    Cosine,
    Huber,
    SquaredError,
)
from lipcert.core.losses.focal import Focal
from lipcert.core.losses.joint import Joint, Part
from lipcert.core.losses.margins import (
    HingeKantorovichRubinstein,
    KantorovichRubinstein,
    MulticlassHinge,
    MultiMargin,
    NegativeLogLikelihood,
)
from lipcert.core.losses.softmax import CrossEntropy
from lipcert.core.losses.tokens import of_token, scores_of, token_share
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import FloatArray, IndexArray, Shape
from lipcert.errors import UsageError
from lipcert.settings.values import LOSSES, check_choice

_BATCH_WEIGHTED: Final = frozenset({"kr-batch", "hkr-batch"})
_OF_TOKENS: Final = frozenset(item.name for item in fields(ClassLoss))
"""Parameters of every loss of classes."""
_MANY: Final = 1 << 24
"""Most numbers of the gradients for all labels."""


Parameter: TypeAlias = float | bool | str
DISTANCES: Final = (SquaredError, AbsoluteError, Huber)
"""Losses that measure how far the outputs are from the labels."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Labels with one entry for each output, and their limits.

    Entries lie from low to high, or are one of these two (`only_ends`); a label has at most this
    Euclidean norm. reach: if neither limits them, labels further than this from every output have
    the longest gradients.
    """

    low: float = -math.inf
    high: float = math.inf
    only_ends: bool = False
    norm: float = math.inf
    reach: float = 1.0


def targets_of(loss: Loss) -> Targets | None:
    """Return the admissible labels if these are not classes.

    For a loss of classes they are those for a single output. The result is None if the loss needs
    several outputs, and for a sum of losses, of which each part has its own.
    """
    match loss:
        case BinaryCrossEntropy():
            return Targets(0.0, 1.0)
        case SquaredError(label_norm=norm):
            return Targets(norm=norm)
        case Huber(label_norm=norm):
            return Targets(norm=math.inf if norm is None else norm, reach=loss.huber_delta)
        case Cosine():
            return Targets(norm=1.0)
        case KantorovichRubinstein():
            return Targets(-1.0, 1.0)
        case MulticlassHinge() | HingeKantorovichRubinstein():
            return Targets(-1.0, 1.0, only_ends=True)
        case ClassLoss() | Joint():
            return None
    return Targets()


def parameters(loss: Loss) -> dict[str, Parameter]:
    """Return every parameter that determines a loss; for a sum of losses each part has its own."""
    if isinstance(loss, Joint):
        return {}
    given = ((item.name, getattr(loss, item.name)) for item in fields(cast("Any", loss)))
    return {name: value for name, value in given if value is not None}


def loss_record(loss: Loss) -> dict[str, Parameter]:
    """Return the kind and the parameters, or the parts as settings spell them."""
    if isinstance(loss, Joint):
        return {"kind": loss.kind, "parts": spelt(stated_parts(loss))}
    return {"kind": loss.kind, **parameters(loss)}


def stated(loss: Loss) -> tuple[tuple[str, float | str], ...]:
    """Return the parameters as a certificate has them."""
    return tuple(
        (name, str(value).lower() if isinstance(value, bool | str) else float(value))
        for name, value in sorted(parameters(loss).items())
    )


def stated_parts(loss: Joint) -> tuple[LossPart, ...]:
    """Return the parts of a sum of losses as a certificate has them."""
    return tuple(
        LossPart(part.output, part.loss.kind, stated(part.loss), part.weight) for part in loss.parts
    )


def spelt(parts: Sequence[LossPart]) -> str:
    """Return parts as settings spell them: `reg=0.5*mse(half=false,label-norm=1.0)`."""
    given = [
        ",".join(f"{name.replace('_', '-')}={value}" for name, value in part.parameters)
        for part in parts
    ]
    return ",".join(
        f"{part.output}={part.weight!r}*{part.kind}{own and f'({own})'}"
        for part, own in zip(parts, given, strict=True)
    )


def make_loss(kind: str, **given: Any) -> Loss:
    """Return the loss of this kind; parameters that are not given have its defaults."""
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
        allowed = ", ".join(sorted(item.replace("_", "-") for item in known.keys() - _OF_TOKENS))
        takes = f"takes {allowed}" if allowed else "has no parameter"
        if known.keys() & _OF_TOKENS:
            takes += ", besides per-token and class-axis"
        raise UsageError(f"{name.replace('_', '-')}: the loss {kind} {takes}")
    for name, is_optional in known.items():
        if not is_optional and name not in given:
            option = name.replace("_", "-")
            raise UsageError(f"{option}: the loss {kind} needs it; give {name}= or --{option}")
    try:
        return loss_class(kind)(**given)
    except Unsupported as error:
        raise UsageError(str(error)) from None


def worst_gradients(loss: Loss, logits: FloatArray) -> FloatArray | None:
    """Return ∂loss/∂logits in float64 for logits [examples, *shape]: [labels, examples, *shape].

    The labels are some admissible ones, the worst among them. Per token, they are the worst of each
    token, and the same one for all tokens. The result is None if the gradient is not known.
    """
    if not isinstance(loss, ClassLoss) or loss.per_token is None:
        return _worst(loss, logits)
    scores = scores_of(loss, logits.shape[1:])
    if scores is None or scores.classes * logits.size > _MANY:
        return None
    own = _worst(of_token(loss), scores.apart(logits.reshape(len(logits), -1)))
    if own is None:
        return None
    longest = own[np.argmax(np.sum(own**2, axis=2), axis=0), np.arange(own.shape[1])]
    found = np.stack([scores.together(rows) for rows in (longest, *own)])
    share = token_share(loss, scores.tokens)
    shared: FloatArray = found.reshape(len(found), *logits.shape) / share
    return shared


def _worst(loss: Loss, logits: FloatArray) -> FloatArray | None:
    """Return the same for a loss that is not per token.

    The labels are all classes, unless these are too many, or the most wrong targets.
    """
    z = logits.reshape(len(logits), -1)
    labels: FloatArray | IndexArray
    match loss:
        case Joint():
            return _of_parts(loss, logits)
        case CrossEntropy() | NegativeLogLikelihood():
            classes = z.shape[1]
            if classes * z.size > _MANY:
                return None
            z, labels = np.tile(z, (classes, 1)), np.repeat(np.arange(classes), len(z))
        case BinaryCrossEntropy():
            labels = np.where(z < 0.0, 1.0, 0.0)
        case SquaredError():
            length = np.linalg.norm(z, axis=1, keepdims=True)
            labels = -loss.label_norm * (z / np.maximum(length, np.finfo(np.float64).tiny))
        case _:
            return None
    return np.asarray(_gradient(loss, z, labels).reshape(-1, *logits.shape))


def _of_parts(loss: Joint, logits: FloatArray) -> FloatArray | None:
    """Return for each label of one part the longest gradient of every other part."""
    flat = logits.reshape(len(logits), -1)
    found = []
    for part, entries in zip(loss.parts, loss.slices, strict=True):
        own = worst_gradients(part.loss, flat[:, entries].reshape(-1, *part.shape))
        if own is None:
            return None
        found.append(part.weight * own.reshape(*own.shape[:2], -1))
    examples = np.arange(len(flat))
    longest = [own[np.argmax(np.sum(own**2, axis=2), axis=0), examples] for own in found]
    rows = [
        np.concatenate([*longest[:at], gradient, *longest[at + 1 :]], axis=1)
        for at, own in enumerate(found)
        for gradient in own
    ]
    return np.stack(rows).reshape(len(rows), *logits.shape)


def loss_gradients(loss: Loss, logits: FloatArray, labels: FloatArray | IndexArray) -> FloatArray:
    """Return ∂loss/∂logits in float64, example by example, at these labels: [examples, *shape].

    labels: class numbers [examples] for a loss over several classes, or [examples, tokens];
    otherwise targets of the shape of the logits; for several outputs, those of one part beside
    those of the next. At a kink the slope is that of one of its sides, or 0.

    Raises:
        TypeError: if the gradient of a loss is not known.
    """
    z = logits.reshape(len(logits), -1)
    y = labels if labels.dtype.kind in "iu" else labels.reshape(len(labels), -1)
    with np.errstate(all="ignore"):
        return np.asarray(_at(loss, logits.shape[1:], z, y).reshape(logits.shape))


def _at(loss: Loss, shape: Shape, z: FloatArray, y: FloatArray | IndexArray) -> FloatArray:
    """Return the gradient, also of a loss per token, for outputs of this shape."""
    if not isinstance(loss, ClassLoss) or loss.per_token is None:
        return _gradient(loss, z, y)
    scores = scores_of(loss, shape)
    if scores is None:
        raise TypeError(f"outputs of shape {shape} hold no scores of tokens")
    labels = y.reshape(-1)
    own = _gradient(of_token(loss), scores.apart(z), np.maximum(labels, 0))
    own *= (labels >= 0)[:, np.newaxis] / token_share(loss, scores.tokens)
    return np.asarray(scores.together(own))


def _gradient(loss: Loss, z: FloatArray, y: FloatArray | IndexArray) -> FloatArray:
    """Return the gradient by z [examples, outputs]; y: class numbers or targets."""
    match loss:
        case CrossEntropy():  # (softmax(z/τ) − t)/τ
            share = loss.label_smoothing
            targets = (1.0 - share) * _marked(z, y) + share / z.shape[1]
            return np.asarray((_softmax(z / loss.temperature) - targets) / loss.temperature)
        case NegativeLogLikelihood():  # −e_y
            return -_marked(z, y)
        case Focal():
            return _focal(loss.focal_gamma, z, y)
        case BinaryCrossEntropy():  # (σ(z/τ) − t)/τ
            score = z / loss.temperature
            odds = np.exp(-np.abs(score))
            sigmoid = np.where(score < 0.0, odds, 1.0) / (1.0 + odds)
            return _reduced((sigmoid - y) / loss.temperature, loss.output_reduction)
        case SquaredError():
            return _reduced((1.0 if loss.half else 2.0) * (z - y), loss.output_reduction)
        case AbsoluteError():
            return _reduced(np.sign(z - y), loss.output_reduction)
        case Huber(huber_delta=delta):
            return _reduced(np.clip(z - y, -delta, delta), loss.output_reduction)
        case Cosine():
            return _cosine(loss.cosine_floor or 0.0, z, y)
        case MulticlassHinge():
            return _hinge(loss.margin, loss.output_reduction, z, y)
        case MultiMargin():  # Σ_{j≠y} [margin − z_y + z_j > 0]·(e_j − e_y)
            label = _marked(z, y)
            scores = (z * label).sum(axis=1, keepdims=True)
            open_ = np.where(loss.margin - scores + z > 0.0, 1.0 - label, 0.0)
            return _reduced(open_ - label * open_.sum(axis=1, keepdims=True), loss.output_reduction)
        case KantorovichRubinstein():
            return _kr(z, y)
        case HingeKantorovichRubinstein():
            return _kr(z, y) + loss.hkr_weight * _hinge(loss.margin, "mean", z, y)
        case Joint():  # the gradients of the parts, times their weights, side by side
            found = [
                part.weight * _at(part.loss, part.shape, z[:, entries], _label_of(part, y[:, own]))
                for part, entries, own in zip(
                    loss.parts, loss.slices, loss.label_slices, strict=True
                )
            ]
            return np.concatenate(found, axis=1)
    raise TypeError(f"the gradient of the loss {loss.kind} is not known")


def _focal(gamma: float, z: FloatArray, y: FloatArray | IndexArray) -> FloatArray:
    """((1 − p)^γ − γ·p·(1 − p)^(γ−1)·ln p)·(softmax(z) − e_y), p the probability of the label.

    With 1 − p as the sum of the others, so that nothing cancels.
    """
    shares, label = _softmax(z), _marked(z, y)
    p, rest = (shares * label).sum(axis=1), (shares * (1.0 - label)).sum(axis=1)
    bend = 0.0 if gamma == 0.0 else gamma * p * rest ** (gamma - 1.0) * -np.log1p(-rest)
    scale = rest**gamma + np.where(rest > 0.0, bend, 0.0)
    return np.asarray(scale[:, np.newaxis] * (shares - label))


def _cosine(floor: float, z: FloatArray, y: FloatArray | IndexArray) -> FloatArray:
    """−(y − u⟨u, y⟩)/‖z‖ with u = z/‖z‖; below the floor −y/floor."""
    length = np.linalg.norm(z, axis=1, keepdims=True)
    u = np.where(length > floor, z / length, 0.0)
    across = y - u * (u * y).sum(axis=1, keepdims=True)
    return np.asarray(-across / np.maximum(length, floor))


def _label_of(part: Part, columns: FloatArray | IndexArray) -> FloatArray | IndexArray:
    """Return the columns of a label matrix that belong to a part, as its own loss reads them."""
    if not part.is_of_classes:
        return columns
    numbers = columns.astype(np.int64)
    return numbers if part.label_size > 1 else numbers[:, 0]


def _hinge(margin: float, reduction: str, z: FloatArray, y: FloatArray | IndexArray) -> FloatArray:
    """Return −s_j where s_j·z_j < margin/2; in the mean the label counts K − 1 times."""
    if y.ndim == 2:
        return np.where(y * z < 0.5 * margin, -y, 0.0)
    label = _marked(z, y)
    signs, classes = 2.0 * label - 1.0, z.shape[1]
    slopes = np.where(signs * z < 0.5 * margin, -signs, 0.0)
    return slopes if reduction == "sum" else slopes * (1.0 + (classes - 2.0) * label) / classes


def _kr(z: FloatArray, y: FloatArray | IndexArray) -> FloatArray:
    """mean_{j≠y} e_j − e_y; of a single output −s."""
    if y.ndim == 2:
        return -np.asarray(y, np.float64)
    label = _marked(z, y)
    return np.asarray((1.0 - label) / (z.shape[1] - 1) - label)


def _softmax(z: FloatArray) -> FloatArray:
    odds: FloatArray = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def _marked(z: FloatArray, y: FloatArray | IndexArray) -> FloatArray:
    """Return 1 at the label, 0 elsewhere: [examples, classes]."""
    marked = np.zeros(z.shape)
    marked[np.arange(len(z)), np.asarray(y, np.int64)] = 1.0
    return marked


def _reduced(terms: FloatArray, reduction: str) -> FloatArray:
    """Return the gradient of the sum over the outputs, or of their mean."""
    return terms / terms.shape[1] if reduction == "mean" else terms
