"""Domain: the admissible examples, as a set in which searches move.

Examples lie in a box and in a ball around 0, and some of their entries are whole numbers. Functions
take and return float64 arrays [examples, *shape]. Invariant: what `settled` and `admitted` return
lies in the domain for certain; all other results lie in it up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.interval import norm_up
from lipcert.core.kinds import Compare, Embedding
from lipcert.core.program import FloatArray, Move, Part, Program
from lipcert.core.rules.facts import Fact, box_norm
from lipcert.graph.ir import places_of

_ROUNDS: Final = 64
_ROOM: Final = 2.0**-44
_WINDOW: Final = 1.0
_SMALLEST_FACTOR: Final = 1e-18
_OUTWARD: Final = 1e9
_DECADES: Final = 7.0
_INWARD_SINGLE: Final = (2.0**-22, 2.0**-20)
_INWARD_DOUBLE: Final = (2.0**-46, 2.0**-40, 2.0**-30, 2.0**-20)

_Act: TypeAlias = "Callable[[Domain, FloatArray], FloatArray]"


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """Flat examples with every entry in a box, and the whole example in a ball around 0.

    radius: of the ball; infinite if it contains the box. whole: which entries are whole numbers;
    the ends of the box are then whole, too. parts: for several inputs, which an example holds one
    after another, the entries and the domain of each.
    """

    low: FloatArray
    high: FloatArray
    radius: float
    whole: npt.NDArray[np.bool_]
    parts: tuple[tuple[slice, Domain], ...] = ()

    @classmethod
    def of(cls, program: Program, facts: Mapping[str, Fact]) -> Self:
        """Return the domain of a program's examples.

        Entries are whole if they choose rows of tables, stand in one input with such entries, or
        are compared with constants. Those that choose rows are limited to existing rows, counted
        from the start.

        facts: what is known of the input and, if there are several, of each.
        """
        shape, fact = program.shapes[program.input], facts[program.input]
        box = fact.box.broadcast(shape)
        places = {program.input: np.arange(box.lo.size).reshape(shape)}
        whole = np.full(box.lo.size + 1, program.ids is not None)  # the last: the fill of moves
        low, high = (np.append(end, 0.0) for end in (box.lo, box.hi))
        for step in program.steps:
            found = places.get(step.inputs[0])
            if found is None:
                continue
            if isinstance(step.op, Move):
                places[step.output] = np.append(found, -1)[step.op.sources]
            elif isinstance(step.op, Compare | Embedding):
                whole[found] = True
            if isinstance(step.op, Embedding):
                least = np.maximum(low[found], 0.0)
                most = np.minimum(high[found], len(step.op.table.lo) - 1.0)
                low[found] = np.where(least <= most, least, low[found])
                high[found] = np.where(least <= most, most, high[found])
        for part, where in places_of(program.parts):
            whole[where] |= part.ids is not None
        whole &= np.ceil(low) <= np.floor(high)
        low, high = np.where(whole, np.ceil(low), low), np.where(whole, np.floor(high), high)
        parts = []
        for part, where in places_of(program.parts):
            radius = _radius(facts[part.name], part.shape)
            parts.append((where, cls(low[where], high[where], radius, whole[where])))
        return cls(low[:-1], high[:-1], _radius(fact, shape), whole[:-1], tuple(parts))

    @property
    def is_bounded(self) -> bool:
        """Whether the box is finite."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def window(self) -> Domain:
        """Replace infinite ends by ±1, so that an attack has a place to begin."""
        return replace(
            self,
            low=np.where(np.isfinite(self.low), self.low, -_WINDOW),
            high=np.where(np.isfinite(self.high), self.high, _WINDOW),
            parts=tuple((where, part.window()) for where, part in self.parts),
        )

    @property
    def width(self) -> float:
        """An upper bound of the distance of two examples, which some nearly reach."""
        return min(float(np.linalg.norm(self.high - self.low)), 2.0 * self.radius)

    def projected(self, x: FloatArray) -> FloatArray:
        """Return the nearest point of the domain, for each example.

        It is s·x clipped to the box, with the largest s ≤ 1 for which that lies in the ball (the
        conditions of Karush, Kuhn and Tucker); log s is found by bisection. Each of several inputs
        is projected, then all are shrunk together if the example is too long. Whole numbers are
        rounded to the nearest, or towards 0 if the nearest are too long.
        """
        flat = x.reshape(len(x), self.low.size)
        if self.parts:
            flat = self._by_part(Domain.projected, flat)
        point = np.clip(flat, self.low, self.high)
        outside = lengths(point) > self.radius
        if outside.any():
            point[outside] = self._drawn_in(flat[outside], self.low, self.high)
        return (self._rounded(point) if self.whole.any() else point).reshape(x.shape)

    def farthest(self, directions: FloatArray) -> FloatArray:
        """Return for each d nearly the x with the largest ⟨d, x⟩; for 0 the point nearest to 0.

        It is the nearest point to one far away along d.
        """
        flat = directions.reshape(len(directions), self.low.size)
        if self.parts:
            far = self._by_part(Domain.farthest, flat)
        else:
            reach = float(np.linalg.norm(np.maximum(np.abs(self.low), np.abs(self.high))))
            scale = _OUTWARD * min(self.radius, reach)
            far = flat * (scale / np.maximum(lengths(flat), _SMALLEST_FACTOR))[:, np.newaxis]
        return self.projected(far).reshape(directions.shape)

    def drawn(self, count: int, random: np.random.Generator) -> FloatArray:
        """Draw examples: first the middle, then nearly constant, inner, corner and far points.

        The result is [examples, entries].
        """
        if self.parts:
            parts = [part.drawn(count, random) for _, part in self.parts]
            return self.projected(np.concatenate(parts, axis=1))
        shape = (count, self.low.size)
        inside = self.low + (self.high - self.low) * random.random(shape)
        corners = np.where(random.random(shape) < random.random((count, 1)), self.low, self.high)
        bell = random.standard_normal(shape)
        far = self.farthest(bell)
        levels = self.low + (self.high - self.low) * random.random((count, 1))
        sizes = self.width * np.exp(-_DECADES * random.random((count, 1)))
        near = levels + sizes / max(np.sqrt(self.low.size), 1.0) * bell
        kinds = np.arange(count) % 4
        found = np.empty(shape)
        for kind, points in enumerate((near, inside, corners, far)):
            found[kinds == kind] = points[kinds == kind]
        found[:1] = 0.5 * (self.low + self.high)
        return self.projected(found)

    def uniform(self, count: int, random: np.random.Generator) -> FloatArray:
        """Draw uniformly from the box, moved into the ball, as [examples, entries].

        Without a bounded box, draw from the standard normal distribution, as standardised data are.
        """
        if self.parts:
            parts = [part.uniform(count, random) for _, part in self.parts]
            return self.projected(np.concatenate(parts, axis=1))
        bell: FloatArray = random.standard_normal((count, self.low.size))
        if not self.is_bounded:
            return self._rounded(bell)
        drawn = random.random(bell.shape)
        wide = self.high - self.low
        x = np.where(self.whole, np.floor(self.low + drawn * (wide + 1.0)), self.low + drawn * wide)
        return self.projected(x)

    def settled(self, x: FloatArray) -> npt.NDArray[Any]:
        """Return nearby points that lie in the domain for certain, [examples, *shape].

        They are float32, so that replaying them in any precision adds no rounding; float64 if the
        domain has no such float32 points nearby.
        """
        flat = x.reshape(len(x), self.low.size)
        single = [self._moved_inward(example, np.float32, _INWARD_SINGLE) for example in flat]
        known = [example for example in single if example is not None]
        if len(known) == len(single):
            return np.stack(known).astype(np.float32).reshape(x.shape)
        double = [self._moved_inward(example, np.float64, _INWARD_DOUBLE) for example in flat]
        shortest = np.clip(0.0, self.low, self.high)
        found = [shortest if example is None else example for example in double]
        return np.stack(found).reshape(x.shape)

    def admitted(self, example: FloatArray) -> FloatArray | None:
        """Return a nearby point that is admissible for certain; None if none is found."""
        found = self._moved_inward(example.reshape(-1), np.float64, _INWARD_DOUBLE)
        return None if found is None else found.reshape(example.shape)

    def contains(self, example: FloatArray) -> bool:
        """Whether an example lies in the domain for certain."""
        flat = example.reshape(-1)
        in_box = bool(np.all((flat >= self.low) & (flat <= self.high)))
        is_whole = bool(np.all(~self.whole | (flat == np.rint(flat))))
        in_parts = all(part.contains(flat[where]) for where, part in self.parts)
        return in_box and is_whole and in_parts and bool(norm_up(flat) <= self.radius)

    def _by_part(self, act: _Act, x: FloatArray) -> FloatArray:
        """Apply a method to each of several inputs."""
        return np.concatenate([act(part, x[:, where]) for where, part in self.parts], axis=1)

    def _drawn_in(self, x: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """Return s·x clipped to a box, with the largest s that puts it in the ball, if any.

        Only for x whose clipped point lies outside, so that s ≤ 1. The square of an entry is t = s²
        times a number, limited from below and above, so that the square of the length is piecewise
        linear in t: Newton's method ends in few steps; where it leaves the bracket, it is halved.
        """
        ray = x * (self.radius / np.maximum(lengths(x), _SMALLEST_FACTOR))[:, np.newaxis]
        if np.all((ray >= low) & (ray <= high)):
            return np.asarray(ray)
        near = np.clip(0.0, low, high)
        far = np.where(ray > 0.0, high, np.where(ray < 0.0, low, near))
        inner, outer, slopes = near * near, far * far, ray * ray
        goal = ((1.0 - _ROOM) * self.radius) ** 2
        t = np.ones(len(x))
        least, most = np.zeros(len(x)), np.square(lengths(x) / max(self.radius, _SMALLEST_FACTOR))
        for _ in range(_ROUNDS):
            squares = np.clip(t[:, np.newaxis] * slopes, inner, outer)
            missing = goal - squares.sum(axis=1)
            inside = missing >= -_ROOM * goal
            least, most = np.where(inside, t, least), np.where(inside, most, t)
            found = np.abs(missing) <= _ROOM * goal
            if found.all():
                break
            rise = np.where((inner < squares) & (squares < outer), slopes, 0.0).sum(axis=1)
            newton = t + missing / np.where(rise > 0.0, rise, np.nan)
            held = (least < newton) & (newton < most)
            t = np.where(found, t, np.where(held, newton, 0.5 * (least + most)))
        return np.asarray(np.clip(ray * np.sqrt(least)[:, np.newaxis], low, high))

    def _rounded(self, x: FloatArray) -> FloatArray:
        """Round whole numbers, and shrink the other entries to compensate if possible."""
        nearest = np.where(self.whole, np.rint(x), x)
        outside = lengths(nearest) > self.radius
        if outside.any():
            ends = (np.where(self.whole, nearest, end)[outside] for end in (self.low, self.high))
            nearest[outside] = self._drawn_in(x[outside], *ends)
        outside = lengths(nearest) > self.radius
        nearest[outside] = np.where(self.whole, np.trunc(x), x)[outside]
        return nearest

    def _moved_inward(
        self, example: FloatArray, dtype: type[np.floating[Any]], steps: tuple[float, ...]
    ) -> FloatArray | None:
        """Return the example in this type, moved inward as little as needed; None if that fails."""
        centre = np.clip(0.0, self.low, self.high)
        for step in (0.0, *steps):
            moved = centre + (1.0 - step) * (example - centre) if step else example
            moved = np.where(self.whole, example, moved)
            rounded = np.clip(moved, self.low, self.high).astype(dtype).astype(np.float64)
            if self.contains(rounded):
                return rounded
        return None


def _radius(fact: Fact, shape: tuple[int, ...]) -> float:
    return math.inf if box_norm(fact.box, shape) <= fact.norm else fact.norm


def lengths(x: FloatArray) -> FloatArray:
    """Return the Euclidean norm of every example: [examples]."""
    return np.asarray(np.linalg.norm(x.reshape(len(x), math.prod(x.shape[1:])), axis=1))


def whole_numbers(part: Part, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Draw ids; for an input without ids draw a mask that shows and hides some of each example."""
    drawn = rng.integers(2 if part.ids is None else part.ids, size=shape)
    if part.ids is None:
        flat = drawn.reshape(len(drawn), -1)
        flat[:, 0], flat[:, 1:][:, -1:] = 1, 0
    return drawn
