"""Moves of entries as views: by digits of the flat index where they form a grid.

What enters: where every entry comes from. What leaves: a `Grid`, or None where the sources are no
grid. Flat indices are read in a mixed radix, as reshaping a value to the lengths of the digits
does: then slicing digits, permuting and repeating them gives every source, and padding the zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from lipcert.core.program import IndexArray, Shape

_Run: TypeAlias = tuple[int, int, int]
"""first place, number of places, step"""
_FEW: int = 4
"""so many runs are joined; more are gathered"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Digit:
    """Part of an axis of the output: places · stride, in order; places rise from 0 at the least."""

    places: IndexArray
    stride: int

    @property
    def length(self) -> int:
        return len(self.places)

    @property
    def reach(self) -> int:
        """From the first to behind the last place."""
        return int(self.places.max()) + 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Which entries of one digit are read: runs of places, or all of them if there are many runs.

    drops: whether it is one place, and the digit goes.
    """

    runs: tuple[_Run, ...]
    places: IndexArray | None
    drops: bool


@final
@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """y = pad(reshape(expand(permute(select(reshape(x, lengths)))), inner)).

    lengths: of the digits of x. selections: by digit. order: of the digits that are kept, −1 for
    one that repeats, of the lengths `repeats`. inner: shape before padding. pads: before and after
    each axis.
    """

    lengths: Shape
    selections: tuple[Selection | None, ...]
    order: tuple[int, ...]
    repeats: Shape
    inner: Shape
    pads: tuple[tuple[int, int], ...]
    shape: Shape

    @classmethod
    def of(cls, sources: IndexArray, shape: Shape) -> Grid | None:
        """The grid of sources in a value of this shape, None if they are none."""
        axes = _separated(sources)
        if axes is None:
            return None
        digits = [_digits(places) for places, _ in axes]
        pads = tuple(pad for _, pad in axes)
        inner = tuple(len(places) for places, _ in axes)
        first = int(sources[tuple(pad[0] for pad in pads)]) if sources.ndim else int(sources)
        lowest = first + sum(int(places.min()) for places, _ in axes)
        flat = [digit for found in digits for digit in found]
        for boundaries in _boundaries(flat, shape):
            grid = _placed(flat, lowest, boundaries)
            if grid is not None:
                lengths, selections, order = grid
                repeats = tuple(digit.length for digit in flat)
                return cls(lengths, selections, order, repeats, inner, pads, sources.shape)
        return None


def _separated(
    sources: IndexArray,
) -> list[tuple[IndexArray, tuple[int, int]]] | None:
    """For each axis the distance of each source from the first one, and the pads around them.

    None where an entry is not the sum of its distances.
    """
    inside = sources >= 0
    if not inside.any():
        return None
    corner = tuple(int(i) for i in np.unravel_index(int(np.argmax(inside)), sources.shape))
    axes: list[tuple[IndexArray, tuple[int, int]]] = []
    expected = np.full((), sources[corner], dtype=np.int64)
    read: npt.NDArray[np.bool_] = np.ones((), dtype=np.bool_)
    for axis, length in enumerate(sources.shape):
        index: tuple[int | slice, ...] = (*corner[:axis], slice(None), *corner[axis + 1 :])
        line = sources[index]
        within = np.flatnonzero(line >= 0)
        begin, end = int(within[0]), int(within[-1]) + 1
        if end - begin != len(within):
            return None
        distances = line[begin:end] - sources[corner]
        axes.append((distances - distances[0], (begin, length - end)))
        expected = np.add.outer(expected, line - sources[corner])
        read = np.logical_and.outer(read, line >= 0)
    if not np.array_equal(read, inside) or not np.array_equal(expected[inside], sources[inside]):
        return None
    return axes


def _digits(places: IndexArray) -> list[_Digit]:
    """The axis as digits, the most significant one first; one that is irregular stands alone."""
    found: list[_Digit] = []
    while len(places) > 1:
        step = int(places[1] - places[0])
        changes = np.flatnonzero(np.diff(places) != step)
        run = len(places) if not len(changes) else int(changes[0]) + 1
        heads = places[::run]
        regular = len(places) % run == 0 and step >= 0 and run > 1
        if regular:
            steps = heads[:, np.newaxis] + step * np.arange(run)
            regular = bool((steps.reshape(-1) == places).all())
        if not regular:
            low = places - places.min()
            stride = int(np.gcd.reduce(low)) or 1
            return [_Digit(low // stride, stride), *found]
        found.insert(0, _Digit(np.arange(run) if step else np.zeros(run, np.int64), step))
        places = heads
    return found


def _boundaries(digits: Sequence[_Digit], shape: Shape) -> list[list[int]]:
    """Radices to try: those of the axes of x that no digit crosses, all of these, none of these."""
    size = math.prod(shape)
    own = [math.prod(shape[axis:]) for axis in range(1, len(shape))]
    ends = [end for d in digits if d.stride for end in (d.stride, d.stride * d.reach)]
    uncrossed = [
        edge
        for edge in own
        if not any(d.stride and d.stride < edge < d.stride * d.reach for d in digits)
    ]
    return [_chain(size, candidates) for candidates in ([*uncrossed, *ends], [*own, *ends], ends)]


def _chain(size: int, candidates: Sequence[int]) -> list[int]:
    """1, …, size: those of the candidates of which each divides the next."""
    chain = [1, size]
    for edge in candidates:
        fits = edge not in chain and size % edge == 0
        if fits and all(edge % other == 0 or other % edge == 0 for other in chain):
            chain.append(edge)
    return sorted(set(chain))


def _placed(
    digits: Sequence[_Digit], lowest: int, chain: Sequence[int]
) -> tuple[Shape, tuple[Selection | None, ...], tuple[int, ...]] | None:
    """Lengths, selections and order; None where a digit is not part of one of the radix."""
    edges = list(itertools.pairwise(chain))[::-1]  # the most significant first
    owner: dict[int, int] = {}
    for number, digit in enumerate(digits):
        if not digit.stride:
            continue
        place = next(i for i, (low, high) in enumerate(edges) if low <= digit.stride < high)
        low, high = edges[place]
        start = lowest // low % (high // low)
        if digit.stride % low or place in owner.values():
            return None
        if start + digit.stride // low * (digit.reach - 1) >= high // low:
            return None
        owner[number] = place
    selections: list[Selection | None] = []
    kept: dict[int, int] = {}
    numbers = {place: number for number, place in owner.items()}
    for place, (low, high) in enumerate(edges):
        start, length = lowest // low % (high // low), high // low
        if place not in numbers:
            selections.append(Selection(((start, 1, 1),), None, drops=True))
            continue
        kept[place] = len(kept)
        digit = digits[numbers[place]]
        places = start + digit.places * (digit.stride // low)
        whole = digit.length == length and bool((places == np.arange(length)).all())
        selections.append(None if whole else _selection(places))
    order = tuple(kept[owner[n]] if n in owner else -1 for n in range(len(digits)))
    return tuple(high // low for low, high in edges), tuple(selections), order


def _selection(places: IndexArray) -> Selection:
    runs: list[_Run] = []
    for place in places.tolist():
        first, count, step = runs[-1] if runs else (place, 0, 0)
        moved = place - first - step * (count - 1)
        if runs and count == 1 and moved:
            runs[-1] = (first, 2, moved)
        elif runs and count > 1 and moved == step:
            runs[-1] = (first, count + 1, step)
        else:
            runs.append((place, 1, 1))
        if len(runs) > _FEW:
            return Selection((), places, drops=False)
    return Selection(tuple(runs), None, drops=False)
