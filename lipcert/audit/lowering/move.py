"""Entries in other places: views where the sources form a grid, gathered one by one elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.dispatch import Tensors, constants, lower
from lipcert.audit.lowering.grid import Grid, Selection
from lipcert.ops.combine import Concat
from lipcert.ops.move import Move
from lipcert.ops.sort import Sort

_GRIDS: Final[WeakKeyDictionary[Move, Grid | None]] = WeakKeyDictionary()


def grid_of(op: Move) -> Grid | None:
    """The grid of a move, found once."""
    if op not in _GRIDS:
        _GRIDS[op] = Grid.of(op.sources, op.shape)
    return _GRIDS[op]


@lower.register
def _move(op: Move, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    (x,) = inputs
    grid = grid_of(op)
    if grid is not None:
        return _on_grid(grid, x, tensors)
    flat = x.flatten(1)
    if op.sources.min(initial=0) < 0:
        flat = functional.pad(flat, (0, 1))
    return flat.index_select(1, tensors["sources"]).view(x.shape[0], *op.sources.shape)


@constants.register
def _move_constants(op: Move, dtype: torch.dtype, device: torch.device) -> Tensors:
    del dtype
    grid = grid_of(op)
    if grid is None:
        sources = np.where(op.sources < 0, np.prod(op.shape, dtype=np.int64), op.sources)
        return {"sources": torch.tensor(sources.reshape(-1), device=device)}
    return {
        f"digit{number}": torch.tensor(selection.places, device=device)
        for number, selection in enumerate(grid.selections)
        if selection is not None and selection.places is not None
    }


def _on_grid(grid: Grid, x: Tensor, tensors: Tensors) -> Tensor:
    count = x.shape[0]
    value = x.reshape(count, *grid.lengths)
    axis = 1
    for number, selection in enumerate(grid.selections):
        if selection is not None:
            value = _selected(value, axis, selection, tensors.get(f"digit{number}"))
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


@lower.register
def _concat(op: Concat, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    return torch.cat(list(inputs), dim=op.axis + 1)


@lower.register
def _sort(op: Sort, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    """Pairs as torch.maximum and torch.minimum have them, which share cotangents at ties."""
    del tensors
    (x,), axis = inputs, op.axis + 1
    if x.shape[axis] != 2:
        return torch.sort(x, dim=axis).values
    first, second = x.unbind(axis)
    return torch.stack((torch.minimum(first, second), torch.maximum(first, second)), dim=axis)
