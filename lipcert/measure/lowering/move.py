"""Entries in other places: views where the sources form a `Grid`, gathered one by one elsewhere.

Flat indices are read in a mixed radix, as reshaping a value to the lengths of the digits does: then
slicing digits, permuting and repeating them gives every source, and padding the zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from lipcert.core.program import IndexArray, Move, Shape
from lipcert.graph.ir import Node, example
from lipcert.measure.lowering.functions import Function, Tensors

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


_GRIDS: Final[WeakKeyDictionary[Node, Grid | None]] = WeakKeyDictionary()


def move(op: Move, node: Node, like: Tensor) -> Function:
    """The move of a node, by its grid, which is found once, where it has one."""
    if node not in _GRIDS:
        _GRIDS[node] = Grid.of(op.sources.reshape(node.shape), example(node.given[0]))
    grid = _GRIDS[node]
    if grid is None:
        return _gathered(op.sources, node, like)
    digits = [
        None if item is None or item.places is None else torch.tensor(item.places).to(like.device)
        for item in grid.selections
    ]
    return lambda x, _: _on_grid(grid, x[0], digits)


def _gathered(sources: IndexArray, node: Node, like: Tensor) -> Function:
    pads, size = sources.min(initial=0) < 0, math.prod(node.given[0])
    places = torch.tensor(np.where(sources < 0, size, sources).reshape(-1), device=like.device)

    def gathered(inputs: Sequence[Tensor], _: Tensors) -> Tensor:
        flat = inputs[0].unsqueeze(-1).flatten(1)
        flat = functional.pad(flat, (0, 1)) if pads else flat
        return flat.index_select(1, places).view(flat.shape[0], *node.shape)

    return gathered


def _on_grid(grid: Grid, x: Tensor, digits: Sequence[Tensor | None]) -> Tensor:
    count = x.shape[0]
    value = x.reshape(count, *grid.lengths)
    axis = 1
    for places, selection in zip(digits, grid.selections, strict=True):
        if selection is not None:
            value = _selected(value, axis, selection, places)
        axis += selection is None or not selection.drops
    value = value.permute(0, *(place + 1 for place in grid.order if place >= 0))
    if -1 in grid.order:
        for axis, place in enumerate(grid.order):
            value = value if place >= 0 else value.unsqueeze(axis + 1)
        value = value.expand(count, *grid.repeats)
    value = value.reshape(count, *grid.inner)
    if grid.inner == grid.shape:
        return value.view(count, *grid.shape)  # never the tensor itself
    return functional.pad(value, [width for pad in reversed(grid.pads) for width in pad])


def _selected(x: Tensor, axis: int, selection: Selection, places: Tensor | None) -> Tensor:
    if places is not None:
        return x.index_select(axis, places)
    if selection.drops:
        return x.select(axis, selection.runs[0][0])
    parts = [_run(x, axis, *run) for run in selection.runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=axis)


def _run(x: Tensor, axis: int, first: int, count: int, step: int) -> Tensor:
    if step < 0:
        last = first + step * (count - 1)
        return _run(x, axis, last, count, -step).flip(axis)
    return x[(slice(None),) * axis + (slice(first, first + step * (count - 1) + 1, step),)]


def concat(axis: int) -> Function:
    """`Concat` of all inputs along the axis."""
    return lambda x, _: torch.cat(list(x), dim=axis)


def sort(axis: int) -> Function:
    """Pairs as torch.maximum and torch.minimum have them, which share cotangents at ties."""

    def ordered(inputs: Sequence[Tensor], _: Tensors) -> Tensor:
        (x,) = inputs
        if x.shape[axis] != 2:
            return torch.sort(x, dim=axis).values
        first, second = x.unbind(axis)
        return torch.stack((torch.minimum(first, second), torch.maximum(first, second)), dim=axis)

    return ordered
