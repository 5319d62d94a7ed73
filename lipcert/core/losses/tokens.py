"""Losses per token, and where the scores of classes lie in an output."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lipcert.core.arithmetic import divide_up, multiply_up
from lipcert.core.interval import Interval
from lipcert.core.losses.base import ClassLoss, Loss, is_vector, unfit
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Shape
from lipcert.core.rules.broadcasting import scaled
from lipcert.core.rules.facts import Cotangent, Fact, root_up


@dataclass(frozen=True, slots=True)
class Scores:
    """Where the class scores of one example lie: of which tokens, and how many of each.

    is_last: whether those of one token lie along the last axis.
    """

    token_shape: Shape
    classes: int
    is_last: bool

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return math.prod(self.token_shape)

    def apart(self, flat: Any) -> Any:
        """Outputs [examples, entries], as arrays or tensors, as scores [tokens of all, classes]."""
        if self.is_last:
            return flat.reshape(-1, self.classes)
        return flat.reshape(-1, self.classes, self.tokens).swapaxes(1, 2).reshape(-1, self.classes)

    def together(self, rows: Any) -> Any:
        """What `apart` gives, as it was."""
        examples = len(rows) // self.tokens
        if not self.is_last:
            rows = rows.reshape(-1, self.tokens, self.classes).swapaxes(1, 2)
        return rows.reshape(examples, self.tokens * self.classes)


def scores_of(loss: Loss, shape: Shape) -> Scores | None:
    """In an output of this shape, with or without the batch axis of one example.

    Of a loss that is not per token, along the one axis with more than one entry. None where they
    lie nowhere: that axis is not there, or not the only one.
    """
    long = [axis for axis, size in enumerate(shape) if size != 1]
    if isinstance(loss, ClassLoss) and loss.per_token is not None:
        axis = len(shape) - 1 if loss.class_axis == "last" else (long or [0])[0]
        classes = shape[axis] if shape else 1
        if classes < 2:
            return None
        tokens = (*shape[:axis], *shape[axis + 1 :])
        return Scores(tokens, classes, is_last=axis == len(shape) - 1)
    if not is_vector(shape):
        return None
    axis = (long or [len(shape) - 1])[0]
    return Scores((), math.prod(shape), is_last=axis == len(shape) - 1)


def of_token(loss: ClassLoss) -> ClassLoss:
    """The loss of one token."""
    return loss if loss.per_token is None else replace(loss, per_token=None, class_axis=None)


def token_share(loss: ClassLoss, tokens: int) -> float:
    """What the loss of a token is divided by, of so many."""
    return float(tokens) if loss.per_token == "mean" else 1.0


def token_cotangent(loss: ClassLoss, logits: Fact, shape: Shape) -> Cotangent:
    """The gradient of a loss per token: that of each token at its own scores, side by side.

    Proof: ℓ_t depends on z_t alone, so the gradient by the entries of z_t is ∇ℓ_t, or 0 without a
    label, divided by n for a mean over n tokens; with the bound c of all ∇ℓ_t the squares add up to
    n·c². What is known of every z_t: it is no longer than a run along its axis, and its entries
    lie between the least and the largest of all ends. A hull holds 0, and so do the multiples of
    a label. Attained: where one example attains the bound of every token; labels are free.
    """
    scores = scores_of(loss, shape)
    if scores is None:
        raise Unsupported(unfit(loss, "a vector for each token", shape))
    runs = {len(shape) - 1: logits.row_norm, len(shape) - 2: logits.column_norm}
    axis = len(shape) - 1 if scores.is_last else shape.index(scores.classes)
    box = logits.box
    ends = (np.full((1, 1), end) for end in (np.min(box.lo), np.max(box.hi)))
    fact = Fact.of((1, scores.classes), min(runs.get(axis, math.inf), logits.norm), Interval(*ends))
    each = of_token(loss).bound(fact, scores.classes)
    if scores.tokens == 1:
        return each
    divisor = token_share(loss, scores.tokens)
    row = scaled(each, divide_up(1.0, divisor))
    norm = divide_up(multiply_up(root_up(scores.tokens), each.norm), divisor)
    return Cotangent(norm, rows=(scores.classes, row) if scores.is_last else None)
