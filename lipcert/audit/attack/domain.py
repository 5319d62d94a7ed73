"""The input domain as a set to move in: box and ball, and the points of both nearest to others.

Input: arrays [examples, *shape] in float64. Output: points of the domain. Invariant: what `settled`
returns lies in the domain beyond doubt; what `projected` returns does so up to rounding.

The labels that a loss admits are such sets too: classes, corners of a cube, a ball. Every label
that is returned is admissible. Where the norm of a gradient is a convex function of the label, its
largest values are at the extreme labels: only those are tried.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

from lipcert.core.interval import Interval
from lipcert.core.losses.base import ClassLoss, Loss, Scores, Targets, scores_of
from lipcert.core.losses.joint import Joint
from lipcert.core.program import IndexArray, Part, Shape
from lipcert.core.rules.facts import Fact, box_norm
from lipcert.errors import NoVerdictError
from lipcert.settings.settings import Settings
from lipcert.upper import FloatArray, Upper, norm

_HALVINGS: Final = 60
_WINDOW: Final = 1.0
_SMALLEST_FACTOR: Final = 1e-18
_OUTWARD: Final = 1e9
_DECADES: Final = 7.0
_INWARD_SINGLE: Final = (2.0**-22, 2.0**-20)
_INWARD_DOUBLE: Final = (2.0**-46, 2.0**-40, 2.0**-30, 2.0**-20)
Labels = npt.NDArray[Any]
"""class numbers [examples], or targets [examples, *output shape]; a matrix for several outputs"""

_TRIED: Final = 12
"""so many classes are tried at an example"""
_PATTERNS: Final = 4
_ALONE: Final = 3
_INWARD: Final = 1e-12
_FAR: Final = 1e6
_LEAP: Final = 1.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """Examples with every entry in a box and the whole within a ball around 0.

    is_box: whether the box lies within the ball as a whole. is_whole: whether entries are whole
    numbers, which choose rows of tables; the ends of the box then are, too. parts: the domains of
    several inputs, which an example [entries] holds one after another.
    """

    low: FloatArray
    high: FloatArray
    radius: float
    is_box: bool
    is_whole: bool = False
    parts: tuple[Domain, ...] = ()

    @classmethod
    def of(cls, shape: Shape, settings: Settings, inputs: Sequence[Part] = ()) -> Self:
        """The declared domain; of one that admits every input, the part with entries up to 1, since
        an attack has to begin somewhere. inputs: those of the file."""
        stated = settings.domains
        ids = [part.ids is not None for part in inputs]
        if not stated[0].input:
            return cls._of(shape, stated[0].norm, stated[0].box, is_whole=any(ids))
        parts = tuple(
            cls._of((part.size,), item.norm, item.box, is_whole=is_whole)
            for part, item, is_whole in zip(inputs, stated, ids, strict=False)
        )
        low, high = (
            np.concatenate(ends)
            for ends in ([part.low for part in parts], [part.high for part in parts])
        )
        radius = math.sqrt(sum(part.radius**2 for part in parts)) * (1.0 + 2.0**-40)
        if settings.input_norm is not None:
            radius = min(radius, settings.input_norm)
        return cls(low, high, radius, settings.input_norm is None, parts=parts)

    @classmethod
    def _of(
        cls,
        shape: Shape,
        radius: float | None,
        ends: tuple[float, float] | None,
        *,
        is_whole: bool,
    ) -> Self:
        if ends is None and radius is None:
            ends = (-_WINDOW, _WINDOW)
        box = None if ends is None else Interval(*(np.full((1,) * len(shape), end) for end in ends))
        fact = Fact.of(shape, math.inf if radius is None else radius, box)
        whole = fact.box.broadcast(shape)
        is_box = box_norm(fact.box, shape) <= fact.norm
        return cls(whole.lo, whole.hi, fact.norm, is_box, is_whole)

    def _by_part(
        self, act: Callable[[Domain, FloatArray], FloatArray], x: FloatArray
    ) -> FloatArray:
        """What is done to each of several inputs of examples."""
        split = np.split(x, self._ends, axis=1)
        return np.concatenate([act(*pair) for pair in zip(self.parts, split, strict=True)], axis=1)

    @property
    def _ends(self) -> IndexArray:
        """Where the next of several inputs begins in an example."""
        return np.cumsum([part.low.size for part in self.parts])[:-1]

    @property
    def width(self) -> float:
        """A length that no two examples exceed as their distance, and some nearly reach."""
        diagonal = float(np.linalg.norm((self.high - self.low).reshape(-1)))
        return min(diagonal, 2.0 * self.radius)

    def projected(self, x: FloatArray) -> FloatArray:
        """The nearest point of the domain, example by example.

        It is s·x clipped to the box, with the largest s ≤ 1 for which that lies in the ball (the
        conditions of Karush, Kuhn and Tucker); log s is found by bisection. Of whole numbers it is
        the nearest one in the box.
        """
        if self.parts:
            x = self._by_part(lambda part, own: part.projected(own), x)
            if self.is_box:
                return x
        clipped = np.clip(x, self.low, self.high)
        if self.is_whole:
            return np.rint(clipped)
        outside = lengths(clipped) > self.radius
        if not outside.any():
            return clipped
        far = x[outside]
        column = (-1, *[1] * (x.ndim - 1))
        least = np.full(len(far), np.log(_SMALLEST_FACTOR))
        most = np.zeros(len(far))
        for _ in range(_HALVINGS):
            middle = 0.5 * (least + most)
            point = np.clip(far * np.exp(middle).reshape(column), self.low, self.high)
            inside = lengths(point) <= self.radius
            least, most = np.where(inside, middle, least), np.where(inside, most, middle)
        clipped[outside] = np.clip(far * np.exp(least).reshape(column), self.low, self.high)
        return clipped

    def outward(self, directions: FloatArray) -> FloatArray:
        """About the farthest points of the domain in these directions; the nearest to 0 in none."""
        if self.parts:
            return self.projected(self._by_part(lambda part, own: part.outward(own), directions))
        length = np.maximum(lengths(directions), _SMALLEST_FACTOR)
        scale = _OUTWARD * max(self.width, self.radius) / length
        return self.projected(_rows_times(scale, directions))

    def drawn(self, count: int, random: np.random.Generator) -> FloatArray:
        """The middle; then nearly constant examples, the inside, corners, far points in turn."""
        if self.parts:
            parts = [part.drawn(count, random) for part in self.parts]
            return self.projected(np.concatenate(parts, axis=1))
        shape = (count, *self.low.shape)
        inside = self.low + (self.high - self.low) * random.random(shape)
        shares = random.random((count, *[1] * self.low.ndim))
        corners = np.where(random.random(shape) < shares, self.low, self.high)
        bell = random.standard_normal(shape)
        far = self.outward(bell)
        levels = self.low + (self.high - self.low) * random.random((count, *[1] * self.low.ndim))
        sizes = self.width * np.exp(-_DECADES * random.random(count))
        near = levels + _rows_times(sizes / max(np.sqrt(self.low.size), 1.0), bell)
        kinds = np.arange(count) % 4
        found = np.empty(shape)
        for kind, points in enumerate((near, inside, corners, far)):
            found[kinds == kind] = points[kinds == kind]
        found[:1] = 0.5 * (self.low + self.high)
        return self.projected(found)

    def settled(self, x: FloatArray) -> npt.NDArray[Any]:
        """Points next to these that lie in the domain beyond doubt, [examples, *shape].

        In float32, so that replaying them in any precision rounds nothing more; in float64 where
        the domain has no such points there.
        """
        single = [self._moved_inward(example, np.float32, _INWARD_SINGLE) for example in x]
        known = [example for example in single if example is not None]
        if len(known) == len(single):
            return np.stack(known).astype(np.float32)
        double = [self._moved_inward(example, np.float64, _INWARD_DOUBLE) for example in x]
        shortest = np.clip(0.0, self.low, self.high)
        return np.stack([shortest if example is None else example for example in double])

    def contains(self, example: FloatArray) -> bool:
        """Whether an example lies in the domain beyond doubt."""
        in_box = bool(np.all((example >= self.low) & (example <= self.high)))
        split = np.split(example, self._ends) if self.parts else []
        in_parts = all(part.contains(own) for part, own in zip(self.parts, split, strict=True))
        return in_box and in_parts and (self.is_box or norm(example) <= Upper(self.radius))

    @property
    def _whole(self) -> npt.NDArray[np.bool_]:
        """Which entries are whole numbers, which nothing moves."""
        if not self.parts:
            return np.full(self.low.shape, self.is_whole)
        return np.concatenate([part._whole for part in self.parts])

    def _moved_inward(
        self, example: FloatArray, dtype: type[np.floating[Any]], steps: tuple[float, ...]
    ) -> FloatArray | None:
        """The example in a type, as little nearer to 0 as makes it belong; None where none does."""
        centre = np.clip(0.0, self.low, self.high)
        for step in (0.0, *steps):
            moved = centre + (1.0 - step) * (example - centre) if step else example
            moved = np.where(self._whole, example, moved)
            rounded = np.clip(moved, self.low, self.high).astype(dtype).astype(np.float64)
            if self.contains(rounded):
                return rounded
        return None


def lengths(x: FloatArray) -> FloatArray:
    """The Euclidean norm of every example: [examples]."""
    return np.asarray(np.linalg.norm(x.reshape(len(x), math.prod(x.shape[1:])), axis=1))


def _rows_times(factors: FloatArray, x: FloatArray) -> FloatArray:
    return np.asarray(factors.reshape(-1, *[1] * (x.ndim - 1)) * x)


class LabelSet(ABC):
    """The admissible labels of one example."""

    @abstractmethod
    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Random labels of so many examples."""

    @abstractmethod
    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """Labels for examples with these outputs, most wrong ones first; one array per choice."""

    @abstractmethod
    def moved(self, labels: Labels, slopes: FloatArray, step: float) -> Labels:
        """The label of one example after a step uphill; 1 is a step across the whole set."""


def label_set(loss: Loss, shape: Shape, outputs: Fact) -> LabelSet:
    """The labels that a loss admits. NoVerdictError where that is not known."""
    if isinstance(loss, Joint):
        sets = tuple(
            label_set(part.loss, part.shape if part.is_of_classes else (part.size,), outputs)
            for part in loss.parts
        )
        return Parts(sets, loss.slices, loss.label_slices)
    scores = scores_of(loss, shape)
    classes = 0 if scores is None else scores.classes
    if isinstance(loss, ClassLoss) and loss.per_token is not None and scores is not None:
        return Tokens(scores)
    if loss.of_classes and classes > 1:
        return Classes(classes)
    targets = None if loss.of_classes and classes != 1 else loss.targets
    match targets:
        case Targets(norm=radius) if radius < np.inf:
            return Ball(shape, radius)
        case Targets(low=low, high=high) if low > -np.inf:
            return Corners(shape, low, high)
        case Targets(reach=reach):
            return _beyond(shape, outputs.norm, reach)
    raise NoVerdictError(
        f"attack: which labels the loss {loss.kind!r} admits for an output of shape {list(shape)} "
        "is not known; audit with data"
    )


@final
@dataclass(frozen=True, slots=True)
class Parts(LabelSet):
    """Labels of several outputs side by side: every combination of theirs.

    entries, columns: where each is among the outputs, and among the labels.
    """

    sets: tuple[LabelSet, ...]
    entries: tuple[slice, ...]
    columns: tuple[slice, ...]

    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Labels drawn independently for each output."""
        return _beside([own.drawn(count, random) for own in self.sets])

    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """The labels of each output in order; then the next of each, the others at their first."""
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
        """Labels moved output by output; class numbers stay what they are."""
        parts = [
            own.moved(labels[at], slopes[at], step)
            for own, at in zip(self.sets, self.columns, strict=True)
        ]
        return np.concatenate(parts)


def _beside(labels: Sequence[Labels]) -> Labels:
    return np.concatenate([own.reshape(len(own), -1).astype(np.float64) for own in labels], axis=1)


@final
@dataclass(frozen=True, slots=True)
class Classes(LabelSet):
    """Class numbers 0 … classes − 1."""

    classes: int

    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Every class about equally often."""
        return random.permutation(np.arange(count, dtype=np.int64) % self.classes)

    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """The classes of the lowest scores."""
        del random
        order = np.argsort(logits.reshape(len(logits), -1), axis=1, kind="stable")
        return list(order[:, :_TRIED].T.astype(np.int64))

    def moved(self, labels: Labels, slopes: FloatArray, step: float) -> Labels:
        """A class stays what it is."""
        del slopes, step
        return labels


@final
@dataclass(frozen=True, slots=True)
class Tokens(LabelSet):
    """A class number for each token: [tokens]."""

    scores: Scores

    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Every class of every token equally likely."""
        return random.integers(self.scores.classes, size=(count, self.scores.tokens))

    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """The classes of the lowest scores of each token, and of all together for all; some drawn.

        One class for all tokens makes what reaches a shared weight point one way.
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

    def moved(self, labels: Labels, slopes: FloatArray, step: float) -> Labels:
        """Classes stay what they are."""
        del slopes, step
        return labels


@final
@dataclass(frozen=True, slots=True)
class Corners(LabelSet):
    """Targets whose entries are one of two numbers each."""

    shape: Shape
    low: float
    high: float

    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Corners of the cube, each equally likely."""
        heads = random.random((count, *self.shape)) < 0.5
        return np.asarray(np.where(heads, self.low, self.high))

    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """The most wrong corner, its opposite, all alike, and a few drawn."""
        wrong = np.where(logits < 0.0, self.high, self.low)
        other = self.low + self.high - wrong
        alike = [np.full_like(wrong, end) for end in (self.low, self.high)]
        drawn = [self.drawn(len(logits), random) for _ in range(_PATTERNS)]
        return [wrong, other] if wrong[0].size == 1 else [wrong, other, *alike, *drawn]

    def moved(self, labels: Labels, slopes: FloatArray, step: float) -> Labels:
        """After a long step, the corner that the slopes point to."""
        if step < _LEAP:
            return labels
        rest = np.where(slopes < 0.0, self.low, labels)
        return np.asarray(np.where(slopes > 0.0, self.high, rest))


@final
@dataclass(frozen=True, slots=True)
class Ball(LabelSet):
    """Targets of at most this norm; the extreme ones have it."""

    shape: Shape
    radius: float

    def drawn(self, count: int, random: np.random.Generator) -> Labels:
        """Labels on the sphere, every direction equally likely."""
        return self._extreme(random.standard_normal((count, *self.shape)))

    def promising(self, logits: FloatArray, random: np.random.Generator) -> Sequence[Labels]:
        """Opposite to the output, across it, and a few drawn."""
        across = random.standard_normal(logits.shape)
        along = np.sum((across * logits).reshape(len(logits), -1), axis=1)
        squares = np.maximum(lengths(logits) ** 2, np.finfo(np.float64).tiny)
        across = across - (along / squares).reshape(-1, *[1] * (logits.ndim - 1)) * logits
        drawn = [self.drawn(len(logits), random) for _ in range(_PATTERNS)]
        return [self._extreme(-logits), self._extreme(across), *drawn]

    def moved(self, labels: Labels, slopes: FloatArray, step: float) -> Labels:
        """Labels moved along the slopes and back to the sphere."""
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
    """Targets that every output misses by more than the kink, on one side or the other."""
    reach = 2.0 * (largest if np.isfinite(largest) else _FAR) + 2.0 * kink + 1.0
    return Corners(shape, -reach, reach)
