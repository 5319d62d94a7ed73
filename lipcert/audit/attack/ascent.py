"""The ascent: rows of examples that climb, each its own objective, and the best of all they meet.

What enters: a field, a domain, a set of labels, rows to start from. What leaves: per objective the
best rows met anywhere. Deterministic. Invariants: rows stay in the domain; nothing that was found
is lost, so that the best is never below the best start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self, final

import numpy as np
import numpy.typing as npt

from lipcert.audit.attack.domain import Domain, lengths
from lipcert.audit.attack.field import Field, Slopes
from lipcert.audit.attack.label_sets import Labels, LabelSet
from lipcert.upper import FloatArray

_Mask = npt.NDArray[np.bool_]

_LEAP: Final = 64.0
"""step, in widths of the domain, after which little but its far points remains"""
_SHORTEST: Final = 0.01
_SHORTER: Final = 0.25
_FLAT: Final = 1e-100


@final
@dataclass(slots=True, eq=False)
class Rows:
    """Examples [rows, *shape], their labels, and which objective each climbs.  # [rows]"""

    x: FloatArray
    labels: Labels
    wanted: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.x)

    def chosen(self, where: npt.NDArray[np.intp] | _Mask) -> Self:
        """Some of the rows."""
        return type(self)(self.x[where], self.labels[where], self.wanted[where])


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Gaits:
    """How each row goes; steps are in widths of the domain.  # [rows] each

    first: its first step. again: its step after a jolt. longer: the factor after a success.
    jolt: how far it is moved towards a random example when it is stuck.
    """

    first: FloatArray
    again: FloatArray
    longer: FloatArray
    jolt: FloatArray

    @classmethod
    def of(cls, count: int) -> Self:
        """Every second row is bold and begins with a leap; the others are careful."""
        place = np.arange(count)
        bold = place % 2 == 0
        return cls(
            first=np.where(bold, _LEAP, 0.06 * 4.0 ** (place // 2 % 3)),
            again=np.where(bold, 0.5, 0.2),
            longer=np.where(bold, 4.0, 2.0),
            jolt=np.where(bold, 0.3, 0.1),
        )


@final
class Best:
    """Per objective, the best example met so far."""

    def __init__(self, objectives: int) -> None:
        self.norms: FloatArray = np.full(objectives, -np.inf)
        self._found: list[tuple[FloatArray, Labels] | None] = [None] * objectives

    def meet(self, x: FloatArray, labels: Labels, norms: FloatArray) -> None:
        """Take over what is better than all before. norms: [objectives, rows]."""
        known = np.where(np.isnan(norms), np.inf, norms)  # NaN is a violation, so worth showing
        for objective, row in enumerate(np.argmax(known, axis=1)):
            if known[objective, row] > self.norms[objective]:
                self.norms[objective] = known[objective, row]
                self._found[objective] = (x[row].copy(), labels[row].copy())

    def example(self, objective: int) -> tuple[FloatArray, Labels]:
        """The best example of an objective, with its label."""
        found = self._found[objective]
        if found is None:
            raise ValueError("nothing was met yet")
        return found

    def rows(self) -> Rows:
        """The best example of every objective."""
        found = [self.example(objective) for objective in range(len(self.norms))]
        return Rows(
            np.stack([x for x, _ in found]),
            np.stack([label for _, label in found]),
            np.arange(len(found)),
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Where rows climb: the field, the sets of examples and labels, and chance."""

    field: Field
    domain: Domain
    labels: LabelSet
    random: np.random.Generator


def climb(
    ground: Ground, rows: Rows, best: Best, rounds: int, observe: Callable[[int], None]
) -> Rows:
    """Climb so many rounds; what is met goes into `best`. Returns the rows where they stand.

    Every row keeps its own step: longer after a success, shorter after a failure, which is taken
    back. Half of them begin with leaps to far points of the domain, where norms, being convex,
    like to be largest. A row that is stuck goes on from somewhere near the best of its objective.
    """
    at, slopes = rows, ground.field.slopes(rows.x, rows.labels, rows.wanted)
    best.meet(at.x, at.labels, slopes.norms)
    heights, gaits = _heights(slopes, at), _Gaits.of(len(rows))
    steps = gaits.first
    for round_ in range(1, rounds):
        stuck = steps < _SHORTEST
        trial = _uphill(ground, at, slopes, steps)
        for row in np.flatnonzero(stuck):
            trial.x[row], trial.labels[row] = best.example(int(at.wanted[row]))
        trial.x[stuck] = _jolted(ground, trial.x[stuck], gaits.jolt[stuck])
        there = ground.field.slopes(trial.x, trial.labels, trial.wanted)
        best.meet(trial.x, trial.labels, there.norms)
        found = _heights(there, trial)
        better = (found > heights) | stuck
        at, slopes = _put(at, trial, better), _put_slopes(slopes, there, better)
        heights = np.where(better, found, heights)
        steps = np.minimum(steps * np.where(better, gaits.longer, _SHORTER), _LEAP)
        steps = np.where(stuck, gaits.again, steps)
        observe(round_)
    return at


def _heights(slopes: Slopes, rows: Rows) -> FloatArray:
    """The norm that each row climbs."""
    found = slopes.norms[rows.wanted, np.arange(len(rows))]
    return np.asarray(np.where(np.isnan(found), np.inf, found))


def _uphill(ground: Ground, rows: Rows, slopes: Slopes, steps: FloatArray) -> Rows:
    length = lengths(slopes.x)
    flat = length <= _FLAT
    factors = np.where(flat, 0.0, steps * ground.domain.width / np.where(flat, 1.0, length))
    factors = factors.reshape(-1, *[1] * (rows.x.ndim - 1))
    moved = [
        ground.labels.moved(label, slope, step)
        for label, slope, step in zip(rows.labels, slopes.labels, steps, strict=True)
    ]
    x = ground.domain.projected(rows.x + factors * slopes.x)
    return Rows(x, np.stack(moved), rows.wanted)


def _jolted(ground: Ground, x: FloatArray, shares: FloatArray) -> FloatArray:
    """Some share of the way from each example to a random one."""
    if not len(x):
        return x
    elsewhere = ground.domain.drawn(len(x) + 1, ground.random)[1:]
    moved = x + shares.reshape(-1, *[1] * (x.ndim - 1)) * (elsewhere - x)
    return ground.domain.projected(moved)


def _put(old: Rows, new: Rows, where: _Mask) -> Rows:
    x, labels = old.x.copy(), old.labels.copy()
    x[where], labels[where] = new.x[where], new.labels[where]
    return Rows(x, labels, old.wanted)


def _put_slopes(old: Slopes, new: Slopes, where: _Mask) -> Slopes:
    norms, x, labels = old.norms.copy(), old.x.copy(), old.labels.copy()
    norms[:, where], x[where], labels[where] = new.norms[:, where], new.x[where], new.labels[where]
    return Slopes(norms, x, labels)
