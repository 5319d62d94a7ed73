"""Moves after moves, and sorting that exporters write as maxima and minima."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lipcert.core.lower.rewriter import Rewriter
from lipcert.core.program import Concat, Move, ReduceMax, Sort, Step


def move_of_move(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """One selection of entries after another is one."""
    inner = rewriter.made(step.inputs[0], Move) if isinstance(step.op, Move) else None
    if inner is None or not isinstance(step.op, Move):
        return None
    sources = np.asarray(inner[0].sources.reshape(-1)[step.op.sources])
    sources[step.op.sources < 0] = -1
    return [replace(step, op=Move(sources), inputs=inner[1].inputs)]


def concat_of_moves(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Selections of entries of one value, side by side, are one selection."""
    if not isinstance(step.op, Concat):
        return None
    found = [rewriter.made(name, Move) for name in step.inputs]
    moves = [item for item in found if item is not None]
    if len(moves) < len(found) or len({inner.inputs for _, inner in moves}) != 1:
        return None
    sources = np.concatenate([op.sources for op, _ in moves], axis=step.op.axis)
    return [replace(step, op=Move(sources), inputs=moves[0][1].inputs)]


def max_min(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """The maxima and the minima of the same pairs, side by side, are the sorted pairs."""
    if not isinstance(step.op, Concat) or len(step.inputs) != 2:
        return None
    halves: list[tuple[bool, str]] = []
    for name in step.inputs:
        move = rewriter.made(name, Move)
        top = rewriter.made(move[1].inputs[0], ReduceMax) if move else None
        if move is None or top is None:
            return None
        stack = rewriter.shapes[top[1].inputs[0]]
        shape = rewriter.shapes[name]
        is_plain = np.array_equal(move[0].sources.reshape(-1), np.arange(math.prod(shape)))
        if stack != (*shape, 2) or top[0].axes != (len(shape),) or not is_plain:
            return None
        halves.append((top[0].minimum, top[1].inputs[0]))
    (first, pair), (second, other) = halves
    if pair != other or first == second:
        return None
    stack = rewriter.shapes[pair]
    entries = np.arange(math.prod(stack), dtype=np.int64).reshape(stack)
    columns = [entries[..., 0 if minimum else 1] for minimum, _ in halves]
    name = rewriter.sink.fresh(step.output)
    ordered = Step(Sort(len(stack) - 1), (pair,), name, stack, step.node)
    sources = np.concatenate(columns, axis=step.op.axis)
    return [ordered, replace(step, op=Move(sources), inputs=(name,))]
