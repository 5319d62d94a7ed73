"""Moves of entries: views if the sources form a `Grid`, otherwise gathered one by one.

Each axis of a grid consists of a few digits. A digit is a set of places at a constant stride in
memory, or at selected multiples of one. So the move is a strided view, of which digits are
selected, joined to axes, and padded by zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipcert.core.program import IndexArray, Move, Shape
from lipcert.graph.ir import Node
from lipcert.measure.lowering.functions import Function, Tensors, functional


@dataclass(frozen=True, slots=True, eq=False)
class _Digit:
    """Part of an axis of the output: places · stride, in order; the smallest place is 0."""

    places: IndexArray
    stride: int

    @property
    def length(self) -> int:
        """Length in the view, up to the last place; a repeated place counts as often as it is
        repeated."""
        return int(self.places.max()) + 1 if self.stride else len(self.places)

    @property
    def selects(self) -> bool:
        """Whether the places are not simply 0, 1, 2, …"""
        return bool(self.stride) and not np.array_equal(self.places, np.arange(self.length))


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """y = pad(reshape(select(x[first + Σ stride · place]))).

    inner: shape before padding. pads: before and after each axis.
    """

    first: int
    digits: tuple[_Digit, ...]
    inner: Shape
    pads: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, sources: IndexArray) -> Grid | None:
        """Return the grid of sources in a flat value; None if they do not form one."""
        axes = separated(sources)
        if axes is None:
            return None
        pads = tuple(pad for _, pad in axes)
        first = int(sources[tuple(pad[0] for pad in pads)]) if sources.ndim else int(sources)
        return cls(
            first + sum(int(places.min()) for places, _ in axes),
            tuple(digit for places, _ in axes for digit in _digits(places)),
            tuple(len(places) for places, _ in axes),
            pads,
        )

    def transposed(self, size: int) -> tuple[Shape, tuple[int, ...]] | None:
        """Return axes of a value of this size, and their order in the digits; None if digits are
        not its axes.

        The digits are then views of the value, in whatever order it lies in memory.
        """
        order = sorted(range(len(self.digits)), key=lambda place: -self.digits[place].stride)
        rest = size
        for digit in (self.digits[place] for place in order):
            if digit.stride * digit.length != rest:
                return None
            rest = digit.stride
        lengths = tuple(self.digits[place].length for place in order)
        axes = tuple(order.index(place) + 1 for place in range(len(order)))
        return (lengths, axes) if rest == 1 else None


def separated(
    sources: IndexArray,
) -> list[tuple[IndexArray, tuple[int, int]]] | None:
    """Return for each axis the distance of each source from the first one, and the pads around
    them.

    None if an entry is not the sum of its distances.
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
    """Split an axis into digits, the most significant first; an irregular one is not split
    further."""
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


_GRIDS: Final[WeakKeyDictionary[Node, Grid | None]] = WeakKeyDictionary()


def move(op: Move, node: Node, like: Tensor) -> Function:
    """Return the move of a node; if it has a grid, the grid is found once."""
    sources, size = op.sources.reshape(node.shape), math.prod(node.given[0])
    if np.array_equal(sources.reshape(-1), np.arange(size)):
        return lambda x, _: _reshaped(x[0], node.shape)
    if node not in _GRIDS:
        _GRIDS[node] = Grid.of(sources)
    grid = _GRIDS[node]
    if grid is None:
        return _gathered(op.sources, node, like)
    places = {
        axis: torch.tensor(digit.places).to(like.device)
        for axis, digit in enumerate(grid.digits, 1)
        if digit.selects
    }
    transposed = grid.transposed(size)
    if transposed is None:
        return lambda x, _: _on_grid(grid, _strided(grid, size, x[0]), places)
    lengths, axes = transposed
    return lambda x, _: _on_grid(
        grid, x[0].reshape(x[0].shape[0], *lengths).permute(0, *axes), places
    )


def _gathered(sources: IndexArray, node: Node, like: Tensor) -> Function:
    pads, size = sources.min(initial=0) < 0, math.prod(node.given[0])
    places = torch.tensor(np.where(sources < 0, size, sources).reshape(-1), device=like.device)

    def gathered(inputs: Sequence[Tensor], _: Tensors) -> Tensor:
        flat = inputs[0].unsqueeze(-1).flatten(1)
        flat = functional.pad(flat, (0, 1)) if pads else flat
        return flat.index_select(1, places).view(flat.shape[0], *node.shape)

    return gathered


def _reshaped(x: Tensor, shape: Shape) -> Tensor:
    """Reshape; never return the tensor itself."""
    found = x.reshape(x.shape[0], *shape)
    return found.view_as(found) if found is x else found


def _strided(grid: Grid, size: int, x: Tensor) -> Tensor:
    count, digits = x.shape[0], grid.digits
    flat = x.reshape(count, size).contiguous()[:, grid.first :]
    return flat.as_strided(
        (count, *(digit.length for digit in digits)), (size, *(digit.stride for digit in digits))
    )


def _on_grid(grid: Grid, value: Tensor, places: Mapping[int, Tensor]) -> Tensor:
    """Select, join and pad the digits.  # value: [examples, *digits]"""
    for axis, own in places.items():
        value = value.index_select(axis, own)
    value = value.reshape(value.shape[0], *grid.inner)
    if not any(map(any, grid.pads)):
        return value
    return functional.pad(value, [width for pad in reversed(grid.pads) for width in pad])


def concat(axis: int) -> Function:
    """Return `Concat` of all inputs along the axis."""
    return lambda x, _: torch.cat(list(x), dim=axis)


def sort(axis: int) -> Function:
    """Return `Sort` along the axis.

    Pairs give the same results as torch.maximum and torch.minimum, which share cotangents at ties,
    but whose own backward passes take several times as long.
    """

    def ordered(inputs: Sequence[Tensor], _: Tensors) -> Tensor:
        (x,) = inputs
        if x.shape[axis] != 2:
            return torch.sort(x, dim=axis).values
        first, second = x.unbind(axis)
        with torch.no_grad():
            swaps = ((first > second).to(x.dtype) + (first >= second)) * 0.5
        return torch.lerp(x, x.flip(axis), swaps.unsqueeze(axis))

    return ordered
