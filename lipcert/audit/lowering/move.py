"""Entries in other places: views where the sources form a grid, gathered one by one elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.grid import Grid, Selection
from lipcert.audit.lowering.signature import Function, Tensors
from lipcert.core.program import IndexArray, Move
from lipcert.graph.ir import Node, example

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
    """`Concat`."""
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
