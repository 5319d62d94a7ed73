"""Recombine a Concat whose parts are one move of another value, or its sorted pairs."""

import math
from dataclasses import replace

import numpy as np

from lipcert.core.kinds import Concat, ReduceMax, Sort
from lipcert.core.lower.rewriter import Rewriter
from lipcert.core.program import IndexArray, Move, Step


def concat_of_moves(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Merge selections from one value (and the value itself), side by side, into one selection."""
    if not isinstance(step.op, Concat):
        return None
    parts = [_selected(rewriter, name) for name in step.inputs]
    if len({value for value, _ in parts}) != 1:
        return None
    sources = np.concatenate([places for _, places in parts], axis=step.op.axis)
    return [replace(step, op=Move(sources), inputs=(parts[0][0],))]


def max_min(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine maxima and minima of the same pairs, side by side, to a sort of the pairs."""
    if not isinstance(step.op, Concat) or len(step.inputs) != 2:
        return None
    parts = [_selected(rewriter, name) for name in step.inputs]
    found = [rewriter.made(value, ReduceMax) for value, _ in parts]
    tops = [item for item in found if item is not None]
    if len(tops) < 2 or tops[0][1].inputs != tops[1][1].inputs:
        return None
    (first, maker), (second, _) = tops
    pair = maker.inputs[0]
    shape = rewriter.shapes[pair]
    if first.minimum == second.minimum or first.axes != second.axes or len(first.axes) != 1:
        return None
    (axis,) = first.axes
    if shape[axis] != 2:
        return None
    entries = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    columns = []
    for (op, _), (_, places) in zip(tops, parts, strict=True):
        own = np.take(entries, 0 if op.minimum else 1, axis=axis).reshape(-1)
        columns.append(np.where(places < 0, -1, own[np.maximum(places, 0)]))
    name = rewriter.sink.fresh(step.output)
    ordered = Step(Sort(axis), (pair,), name, shape, step.node)
    sources = np.concatenate(columns, axis=step.op.axis)
    return [ordered, replace(step, op=Move(sources), inputs=(name,))]


def _selected(rewriter: Rewriter, name: str) -> tuple[str, IndexArray]:
    """Return the value from which `name` is moved, and the indices; `name` itself if unmoved."""
    move = rewriter.made(name, Move)
    if move is not None:
        return move[1].inputs[0], move[0].sources
    shape = rewriter.shapes[name]
    return name, np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
