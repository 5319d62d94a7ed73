"""The labels that a loss admits, as sets to move in: classes, corners of a cube, a ball.

Every label that is returned is admissible. If the norm of a gradient is a convex function of the
label, its largest values are at the extreme labels: only those are tried.

Bounds cover admissible labels only. `checked_labels` turns an array of labels, one for each
example, into class numbers [examples] for a loss over several classes, or else into float64 targets
[examples, *output shape]; for several outputs into a float64 matrix, with the class number or the
targets of one output beside those of the next. Labels are only reshaped; one-hot rows are read as
their class, and targets that exceed their limit by rounding are shortened to it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.losses.base import NO_LABEL, ClassLoss, Loss
from lipcert.core.losses.joint import Joint, Part
from lipcert.core.losses.tokens import Scores, scores_of
from lipcert.core.program import FloatArray, Shape
from lipcert.errors import NoVerdictError
from lipcert.graph.domain import lengths
from lipcert.losses import Targets, parameters, targets_of

Labels = npt.NDArray[Any]
"""Class numbers [examples], or targets [examples, *output shape]; a matrix for several outputs."""

_TRIED: Final = 12
"""Number of classes that are tried at an example."""
_PATTERNS: Final = 4
_ALONE: Final = 3
_INWARD: Final = 1e-12
_FAR: Final = 1e6
_LEAP: Final = 1.0
_ROUNDINGS: Final = 8.0
"""Labels scaled to the limit in their own dtype may exceed it by this many of its roundings."""


@dataclass(frozen=True, slots=True)
class LabelSet(ABC):
    """The admissible labels of one example."""

    loss: Loss

    @abstractmethod
    def checked(self, labels: Labels, first: int) -> Labels:
        """Return given labels in the form of this set; raise NoVerdictError for one outside of it.

        first: the number of the first example, for messages.
        """

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
        return Parts(loss, sets, loss.slices, loss.label_slices, loss.parts)
    scores = scores_of(loss, shape)
    if isinstance(loss, ClassLoss):
        if scores is None:
            raise NoVerdictError(
                f"labels: the output of an example has shape {shape}, and it is not stated which "
                f"of its axes holds the classes of the loss {loss.kind!r}; end the network in one "
                "vector of class scores, or state a loss per token"
            )
        if loss.per_token is not None:
            return Tokens(loss, scores)
        if scores.classes > 1:
            return Classes(loss, scores.classes)
        if not loss.of_one_score:
            raise NoVerdictError(
                f"labels: the loss {loss.kind!r} needs several class scores, the network has one; "
                "use the loss bce"
            )
    limits = targets_of(loss)
    if limits is None:
        raise NoVerdictError(f"labels: which the loss {loss.kind!r} admits is not known")
    if limits.norm < np.inf:
        return Ball(loss, shape, limits, limits.norm)
    if limits.low > -np.inf:
        return Corners(loss, shape, limits, limits.low, limits.high)
    # every output misses them by more than the kink
    far = 2.0 * (largest if np.isfinite(largest) else _FAR) + 2.0 * limits.reach + 1.0
    return Corners(loss, shape, limits, -far, far)


@dataclass(frozen=True, slots=True)
class Parts(LabelSet):
    """Labels of several outputs side by side, in every combination.

    entries, columns: the position of each output among the outputs, and among the labels.
    """

    sets: tuple[LabelSet, ...]
    entries: tuple[slice, ...]
    columns: tuple[slice, ...]
    parts: tuple[Part, ...]

    def checked(self, labels: Labels, first: int) -> Labels:
        """Return labels of several outputs as one row of numbers for each example."""
        width = self.columns[-1].stop
        rows = labels.reshape(len(labels), -1) if labels.size else np.zeros((0, width))
        if rows.shape[1] != width:
            widths = [at.stop - at.start for at in self.columns]
            said = (f"{part.output}: {n}" for part, n in zip(self.parts, widths, strict=True))
            raise NoVerdictError(
                f"labels of shape {labels.shape}: {width} numbers are needed for each "
                f"example, those of one output beside those of the next ({', '.join(said)})"
            )
        found = []
        for part, own, at in zip(self.parts, self.sets, self.columns, strict=True):
            numbers = rows[:, at]
            try:
                if part.is_of_classes and numbers.dtype.kind == "f":  # beside float targets
                    whole = np.all(numbers == np.round(numbers), axis=1)
                    _require(whole, numbers, first, "is not a whole number, and so not a class")
                    numbers = numbers.astype(np.int64)
                found.append(own.checked(numbers, first))
            except NoVerdictError as error:
                raise NoVerdictError(f"output {part.output!r}: {error}") from None
        return _beside(found)

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

    def checked(self, labels: Labels, first: int) -> Labels:
        """Return class numbers [examples] from class numbers or one-hot rows."""
        numbers = labels.reshape(len(labels), -1) if labels.size else labels.reshape(len(labels), 0)
        if numbers.shape[1] == self.classes:
            return self._from_one_hot(numbers, first)
        if len(labels) == 0:
            return np.zeros(0, dtype=np.int64)
        if numbers.shape[1] != 1:
            raise NoVerdictError(
                f"labels of shape {labels.shape}: the loss {self.loss.kind!r} needs one class "
                f"number, or one one-hot row of {self.classes}, for each example"
            )
        _require_integers(labels)
        column = numbers[:, 0]
        known = (column >= 0) & (column < self.classes)
        _require(known, column, first, f"is not a class from 0 to {self.classes - 1}")
        found: npt.NDArray[np.int64] = column.astype(np.int64)
        return found

    def _from_one_hot(self, rows: Labels, first: int) -> Labels:
        is_one_hot = np.all((rows == 0) | (rows == 1), axis=1) & (np.sum(rows == 1, axis=1) == 1)
        only = f"the bounds of the loss {self.loss.kind!r} hold for one class per example"
        _require(is_one_hot, rows, first, f"is not one-hot; {only}")
        return np.asarray(np.argmax(rows, axis=1), dtype=np.int64)

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

    def checked(self, labels: Labels, first: int) -> Labels:
        """Return a class number, or `NO_LABEL`, for each token: [examples, tokens]."""
        tokens, classes = self.scores.tokens, self.scores.classes
        shape = _without_ones(self.scores.token_shape)
        if _without_ones(labels.shape[1:]) not in {shape, _without_ones((tokens,))}:
            raise NoVerdictError(
                f"labels of shape {labels.shape}: the loss {self.loss.kind!r} per token needs one "
                "class number for each token, that is shape [examples, "
                f"{', '.join(map(str, shape or (1,)))}]"
            )
        _require_integers(labels)
        rows = labels.reshape(len(labels), tokens).astype(np.int64)
        known = (rows == NO_LABEL) | ((rows >= 0) & (rows < classes))
        what = f"has a token whose label is not a class from 0 to {classes - 1}, nor {NO_LABEL}"
        _require(np.all(known, axis=1), rows, first, what)
        return rows

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
class TargetSet(LabelSet):
    """Targets with one entry for each output, within limits."""

    shape: Shape
    limits: Targets

    def checked(self, labels: Labels, first: int) -> Labels:
        """Return float64 targets in the shape of the output; only axes of length 1 may differ."""
        if _without_ones(labels.shape[1:]) != _without_ones(self.shape):
            raise NoVerdictError(
                f"labels of shape {labels.shape}: the loss {self.loss.kind!r} needs one target for "
                f"each output, that is shape [examples, {', '.join(map(str, self.shape))}]"
            )
        targets = np.asarray(labels, dtype=np.float64).reshape(len(labels), *self.shape)
        rows = targets.reshape(len(labels), int(np.prod(self.shape, dtype=np.int64)))
        _require(np.all(np.isfinite(rows), axis=1), rows, first, "is not finite")
        admissible, low, high = self.limits, self.limits.low, self.limits.high
        if admissible.only_ends:
            ok = np.all((rows == low) | (rows == high), axis=1)
            what = f"is neither {low:g} nor {high:g}, the classes of a single output"
            _require(ok, rows, first, what)
        elif low > -np.inf:
            ok = np.all((rows >= low) & (rows <= high), axis=1)
            _require(ok, rows, first, f"is outside [{low:g}, {high:g}]")
        if admissible.norm < np.inf:
            stated = (
                "the stated --label-norm"
                if "label_norm" in parameters(self.loss)
                else "1; divide each target by its norm"
            )
            rows = _shortened(labels, rows, admissible.norm, first, stated)
        return rows.reshape(targets.shape)


@dataclass(frozen=True, slots=True)
class Corners(TargetSet):
    """Targets each of whose entries is one of two numbers."""

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
class Ball(TargetSet):
    """Targets of at most this norm; the extreme ones have it."""

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


def checked_labels(loss: Loss, labels: Labels, output_shape: Shape, first: int = 0) -> Labels:
    """Return the labels as `per_example_loss` takes them.

    first: the number of the first example, for messages.

    Raises:
        NoVerdictError: if labels do not fit the loss or the output, or are not admissible.
    """
    array = np.asarray(labels)
    if array.dtype.kind not in "biuf":
        raise NoVerdictError(
            f"labels of type {array.dtype} are not numbers: give class numbers or targets as "
            "integers or floats"
        )
    if array.ndim == 0:
        raise NoVerdictError(
            "labels: one number is not a list of labels; give one for each example"
        )
    return label_set(loss, output_shape).checked(array, first)


def _shortened(array: Labels, rows: FloatArray, limit: float, first: int, why: str) -> FloatArray:
    """Return rows of norm at most the limit; those above it by their own rounding are shortened.

    Proof: a computed norm of n entries is off by less than n·2^-52 of itself, and the factor by a
    few units more.
    """
    own = float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0
    spacing = max(own, float(np.finfo(np.float64).eps))
    largest = np.max(np.abs(rows), axis=1, initial=0.0)  # no square overflows or vanishes
    scaled = rows / np.where(largest > 0.0, largest, 1.0)[:, np.newaxis]
    norms = largest * np.linalg.norm(scaled, axis=1)
    allowed = limit * (1.0 + _ROUNDINGS * spacing)
    _require(norms <= allowed, norms, first, f"is the norm of its target, larger than {why}")
    if limit == 0.0:
        return rows
    longest = limit * (1.0 - (rows.shape[1] + 8) * float(np.finfo(np.float64).eps))
    drawn: FloatArray = rows * (longest / np.maximum(norms, longest))[:, np.newaxis]
    return drawn


def _require_integers(labels: Labels) -> None:
    if labels.dtype.kind not in "iu":
        raise NoVerdictError(
            f"labels of type {labels.dtype}: class numbers are integers; convert them with "
            "y.astype(int) if they are whole numbers"
        )


def _require(ok: npt.NDArray[np.bool_], shown: Labels, first: int, what: str) -> None:
    if np.all(ok):
        return
    index = int(np.argmin(ok))
    value = np.array2string(np.asarray(shown[index]), threshold=6, edgeitems=2, separator=", ")
    value = " ".join(value.split())
    raise NoVerdictError(
        f"labels: example {first + index}: {value} {what} "
        f"({int(np.sum(~ok))} of {len(ok)} labels are not admissible)"
    )


def _without_ones(shape: Shape) -> Shape:
    return tuple(length for length in shape if length != 1)
