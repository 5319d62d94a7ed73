"""Rearrangements: reshape, transpose, select, pad, expand, tile, concatenate, sort."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lipcert.audit.lowering.dispatch import Tensors, aligned, constants, lower
from lipcert.ops.combine import Concat
from lipcert.ops.shape import Expand, Pad, PadMode, Reshape, Select, Sort, Tile, Transpose

_Run = tuple[int, int, int]
"""first place, number of places, step (−1, 0 or 1)"""


@lower.register
def _reshape(op: Reshape, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    return x.reshape(x.shape[0], *op.shape).view(x.shape[0], *op.shape)


@lower.register
def _transpose(op: Transpose, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    return inputs[0].permute(0, *(axis + 1 for axis in op.perm))


@lower.register
def _select(op: Select, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    (x,) = inputs
    step = _even_step(op.indices)
    if step is None:
        return x.index_select(op.axis + 1, tensors["indices"])
    first, last = op.indices[0], op.indices[-1]
    along = slice(first, last + 1, step)
    return x[(slice(None),) * (op.axis + 1) + (along,)]


@constants.register
def _select_constants(op: Select, dtype: torch.dtype, device: torch.device) -> Tensors:
    del dtype
    if _even_step(op.indices) is not None:
        return {}
    return {"indices": torch.tensor(op.indices, dtype=torch.int64, device=device)}


@lower.register
def _pad(op: Pad, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    (x,) = inputs
    if op.mode is PadMode.CONSTANT:
        ends = reversed(list(zip(op.begin, op.end, strict=True)))
        widths = [width for pair in ends for width in pair]
        return functional.pad(x, widths, value=op.value) if any(widths) else x.view_as(x)
    padded = x.view_as(x)
    for axis, (begin, end) in enumerate(zip(op.begin, op.end, strict=True), start=1):
        if begin or end:
            runs = _padded_runs(x.shape[axis], begin, end, op.mode)
            padded = torch.cat([_run(padded, axis, run) for run in runs], dim=axis)
    return padded


@lower.register
def _expand(op: Expand, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    x = aligned(inputs[0], len(op.shape))
    return x.expand(x.shape[0], *op.shape)


@lower.register
def _tile(op: Tile, inputs: Sequence[Tensor], tensors: Tensors) -> Tensor:
    del tensors
    return inputs[0].repeat(1, *op.repeats)


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
        return torch.sort(x, dim=axis, descending=op.descending).values
    first, second = x.unbind(axis)
    ends = torch.minimum(first, second), torch.maximum(first, second)
    return torch.stack(ends[::-1] if op.descending else ends, dim=axis)


def _even_step(indices: tuple[int, ...]) -> int | None:
    """The step of indices that rise evenly; None where they do not."""
    if not indices:
        return None
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    even = step > 0 and indices == tuple(range(indices[0], indices[-1] + 1, step))
    return step if even else None


@lru_cache(maxsize=1024)
def _padded_runs(length: int, begin: int, end: int, mode: PadMode) -> tuple[_Run, ...]:
    """The places that a padded axis reads, as runs of neighbours."""
    if mode is PadMode.CONSTANT:
        raise ValueError("constant padding reads no places")
    places = [int(place) for place in np.pad(np.arange(length), (begin, end), mode=mode.value)]
    runs: list[_Run] = []
    for place in places:
        first, count, step = runs[-1] if runs else (place, 0, 0)
        moved = place - first - step * (count - 1)
        if count == 1 and abs(moved) <= 1:
            runs[-1] = (first, 2, moved)
        elif count > 1 and moved == step:
            runs[-1] = (first, count + 1, step)
        else:
            runs.append((place, 1, 0))
    return tuple(runs)


def _run(x: Tensor, axis: int, run: _Run) -> Tensor:
    first, count, step = run
    if step < 0:
        return x.narrow(axis, first - count + 1, count).flip(axis)
    if step > 0:
        return x.narrow(axis, first, count)
    return x.narrow(axis, first, 1).expand(
        *(count if other == axis else length for other, length in enumerate(x.shape))
    )
