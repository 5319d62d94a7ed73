"""The labels that a loss admits, as sets to move in: classes, corners of a cube, a ball.

Every label that is returned is admissible. If the norm of a gradient is a convex function of the
label, its largest values are at the extreme labels: only those are tried.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.losses.base import ClassLoss, Loss
from lipcert.core.losses.joint import Joint
from lipcert.core.losses.tokens import Scores, scores_of
from lipcert.core.program import FloatArray, Shape
from lipcert.errors import NoVerdictError
from lipcert.graph.domain import lengths
from lipcert.losses import Targets, targets_of

Labels = npt.NDArray[Any]
"""Class numbers [examples], or targets [examples, *output shape]; a matrix for several outputs."""

_TRIED: Final = 12
"""Number of classes that are tried at an example."""
_PATTERNS: Final = 4
_ALONE: Final = 3
_INWARD: Final = 1e-12
_FAR: Final = 1e6
_LEAP: Final = 1.0


class LabelSet(ABC):
    """The admissible labels of one example."""

    @abstractmethod
    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Return random labels for this many examples."""

    @abstractmethod
    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """Return labels for examples with these outputs, the most wrong first; one array per
        choice."""

    def moved(self, labels: Labels, slopes: FloatArray, step: float) -> Labels:
        """Return the label of one example after a step uphill; a step of 1 crosses the whole set.

        Classes do not move.
        """
        del slopes, step
        return labels


def label_set(loss: Loss, shape: Shape, largest: float = 0.0) -> LabelSet:
    """Return the labels that a loss admits; raise NoVerdictError if they are not known.

    largest: bound of the norm of outputs, which targets without a limit are to miss.
    """
    if isinstance(loss, Joint):
        sets = tuple(
            label_set(part.loss, part.shape if part.is_of_classes else (part.size,), largest)
            for part in loss.parts
        )
        return Parts(sets, loss.slices, loss.label_slices)
    scores = scores_of(loss, shape)
    classes = 0 if scores is None else scores.classes
    if isinstance(loss, ClassLoss) and loss.per_token is not None and scores is not None:
        return Tokens(scores)
    if loss.of_classes and classes > 1:
        return Classes(classes)
    targets = None if loss.of_classes and classes != 1 else targets_of(loss)
    match targets:
        case Targets(norm=radius) if radius < np.inf:
            return Ball(shape, radius)
        case Targets(low=low, high=high) if low > -np.inf:
            return Corners(shape, low, high)
        case Targets(reach=reach):
            return _beyond(shape, largest, reach)
    raise NoVerdictError(
        f"labels: which the loss {loss.kind!r} admits for an output of shape {list(shape)} is not "
        "known; give examples with theirs"
    )


@dataclass(frozen=True, slots=True)
class Parts(LabelSet):
    """Labels of several outputs side by side, in every combination.

    entries, columns: the position of each output among the outputs, and among the labels.
    """

    sets: tuple[LabelSet, ...]
    entries: tuple[slice, ...]
    columns: tuple[slice, ...]

    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Draw labels independently for each output."""
        return _beside([own.drawn(count, random) for own in self.sets])

    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """Return the labels of all outputs in order; then further ones of one output, the others at
        their first."""
        found = [
            own.promising(logits[:, at], random)
            for own, at in zip(self.sets, self.entries, strict=True)
        ]
        lasts = [len(own) - 1 for own in found]
        chosen = [tuple(min(k, last) for last in lasts) for k in range(max(lasts) + 1)]
        chosen += [
            tuple(k if at == moving else 0 for at in range(len(found)))
            for moving, last in enumerate(lasts)
            for k in range(1, min(last + 1, _ALONE))
        ]
        return [
            _beside([own[k] for own, k in zip(found, choice, strict=True)])
            for choice in dict.fromkeys(chosen)
        ]

    def moved(self, labels: Labels, slopes: FloatArray, step: float) -> Labels:
        """Move labels output by output; class numbers do not move."""
        parts = [
            own.moved(labels[at], slopes[at], step)
            for own, at in zip(self.sets, self.columns, strict=True)
        ]
        return np.concatenate(parts)


def _beside(labels: Sequence[Labels]) -> Labels:
    return np.concatenate([own.reshape(len(own), -1).astype(np.float64) for own in labels], axis=1)


@dataclass(frozen=True, slots=True)
class Classes(LabelSet):
    """Class numbers 0 … classes − 1."""

    classes: int

    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Draw every class with equal probability."""
        return random.integers(self.classes, size=count)

    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """Return the classes with the lowest scores."""
        del random
        order = np.argsort(logits.reshape(len(logits), -1), axis=1, kind="stable")
        return list(order[:, :_TRIED].T.astype(np.int64))


@dataclass(frozen=True, slots=True)
class Tokens(LabelSet):
    """A class number for each token: [tokens]."""

    scores: Scores

    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Draw every class of every token with equal probability."""
        return random.integers(self.scores.classes, size=(count, self.scores.tokens))

    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """Return the classes with the lowest scores, of each token and of all together, and random
        ones.

        One class for all tokens makes all contributions to a shared weight point the same way.
        """
        count, tokens = len(logits), self.scores.tokens
        rows = self.scores.apart(logits.reshape(count, -1))
        order = np.argsort(rows, axis=1, kind="stable").reshape(count, tokens, -1)
        totals = rows.reshape(count, tokens, -1).sum(axis=1)
        alike = np.argsort(totals, axis=1, kind="stable")
        tried = range(min(_TRIED, self.scores.classes))
        found = [order[:, :, k].astype(np.int64) for k in tried]
        found += [np.repeat(alike[:, k : k + 1], tokens, axis=1).astype(np.int64) for k in tried]
        return [*found, *(self.drawn(count, random) for _ in range(_PATTERNS))]


@dataclass(frozen=True, slots=True)
class Corners(LabelSet):
    """Targets each of whose entries is one of two numbers."""

    shape: Shape
    low: float
    high: float

    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Draw corners of the cube, each with equal probability."""
        heads = random.standard_normal((count, *self.shape)) < 0.0
        return np.asarray(np.where(heads, self.low, self.high))

    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """Return the most wrong corner, its opposite, both constant ones, and a few random ones."""
        wrong = np.where(logits < 0.0, self.high, self.low)
        other = self.low + self.high - wrong
        alike = [np.full_like(wrong, end) for end in (self.low, self.high)]
        drawn = [self.drawn(len(logits), random) for _ in range(_PATTERNS)]
        return [wrong, other] if wrong[0].size == 1 else [wrong, other, *alike, *drawn]

    def moved(self, labels: Labels, slopes: FloatArray, step: float) -> Labels:
        """Return the corner to which the slopes point, if the step is long."""
        if step < _LEAP:
            return labels
        rest = np.where(slopes < 0.0, self.low, labels)
        return np.asarray(np.where(slopes > 0.0, self.high, rest))


@dataclass(frozen=True, slots=True)
class Ball(LabelSet):
    """Targets of at most this norm; the extreme ones have it."""

    shape: Shape
    radius: float

    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Draw labels on the sphere, every direction equally likely."""
        return self._extreme(random.standard_normal((count, *self.shape)))

    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """Return the labels opposite to the output, orthogonal to it, and a few random ones."""
        across = random.standard_normal(logits.shape)
        along = np.sum((across * logits).reshape(len(logits), -1), axis=1)
        squares = np.maximum(lengths(logits) ** 2, np.finfo(np.float64).tiny)
        across = across - (along / squares).reshape(-1, *[1] * (logits.ndim - 1)) * logits
        drawn = [self.drawn(len(logits), random) for _ in range(_PATTERNS)]
        return [self._extreme(-logits), self._extreme(across), *drawn]

    def moved(self, labels: Labels, slopes: FloatArray, step: float) -> Labels:
        """Move labels along the slopes and back to the sphere."""
        length = float(np.linalg.norm(slopes.reshape(-1)))
        if length == 0.0 or not np.isfinite(length):
            return labels
        moved: Labels = self._extreme((labels + step * self.radius / length * slopes)[None])[0]
        return moved

    def _extreme(self, directions: FloatArray) -> FloatArray:
        directions = np.nan_to_num(directions)
        column = (-1, *[1] * (directions.ndim - 1))
        directions = np.where(lengths(directions).reshape(column) > 0.0, directions, 1.0)
        factors = self.radius * (1.0 - _INWARD) / lengths(directions)
        return np.asarray(factors.reshape(-1, *[1] * (directions.ndim - 1)) * directions)


def _beyond(shape: Shape, largest: float, kink: float) -> Corners:
    """Return targets that every output misses by more than the kink, on one side or the other."""
    reach = 2.0 * (largest if np.isfinite(largest) else _FAR) + 2.0 * kink + 1.0
    return Corners(shape, -reach, reach)
