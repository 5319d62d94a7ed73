"""Recombine attention and logarithms of softmax that are several nodes; merge biases and moves.

As in `macros`, every rule is an identity of real functions, for the numbers in the file.
"""

from dataclasses import replace

import numpy as np

from lipcert.core.lower.rewriter import Rewriter
from lipcert.core.program import Dense, Move, Operand, Step
from lipcert.core.token_kinds import Attention, Hide, MatMul, Scale, Shift, Softmax
from lipcert.core.window_kinds import Conv

_HIDDEN = -1000.0
"""A mask entry of at most this is taken to hide a score, and not to be trained."""


def attention(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine softmax(c·q@k + mask)@v; if c is not exact, or is a parameter, it scales q."""
    soft = rewriter.made(step.inputs[0], Softmax) if isinstance(step.op, MatMul) else None
    if soft is None or soft[0].logarithm or soft[0].axis != len(soft[1].shape) - 1:
        return None
    hidden = rewriter.made(soft[1].inputs[0], Hide)
    scores, *masks = soft[1].inputs if hidden is None else hidden[1].inputs
    mask, scores = _masked(rewriter, scores)
    factor, inner = rewriter.scaled(scores)
    products = rewriter.made(inner, MatMul)
    if products is None or products[1].shape != soft[1].shape:  # a mask may repeat the scores
        return None
    query, key = products[1].inputs
    values = step.inputs[1]
    if len({rewriter.shapes[name][:-2] for name in (query, key, values)}) != 1:
        return None
    if factor is None or (factor.is_exact and not factor.sources):
        scale = 1.0 if factor is None else float(factor.lo.item())
        op = Attention(scale, mask)
        return [replace(step, op=op, inputs=(query, key, values, *masks))]
    name, shape = rewriter.sink.fresh(step.output), rewriter.shapes[query]
    first = Step(Scale(factor), (query,), name, shape, step.node)
    return [first, replace(step, op=Attention(1.0, mask), inputs=(name, key, values, *masks))]


def _masked(rewriter: Rewriter, scores: str) -> tuple[Operand | None, str]:
    """Return the mask and the scores; a bias is merged into a mask of −inf and 0.

    A mask that hides a whole row is not accepted; one that hides nothing may be trained, and stays
    a step.
    """
    found = rewriter.made(scores, Shift)
    if found is None:
        return None, scores
    mask, inner = found[0].offset, found[1].inputs[0]
    more = rewriter.made(inner, Shift)
    both = None if more is None else _both(mask, more[0].offset)
    if more is not None and both is not None:
        mask, inner = both, more[1].inputs[0]
    hidden = np.broadcast_to(np.isneginf(mask.hi), found[1].shape).all(axis=-1)
    if not (mask.hi <= _HIDDEN).any() or hidden.any() or not (mask.hi < np.inf).all():
        return None, scores
    rewriter.swallow(mask)
    return mask, inner


def _both(first: Operand, second: Operand) -> Operand | None:
    """Return the sum of a mask of −inf and 0 and a bias (as of positions), in either order."""
    for mask, bias in ((first, second), (second, first)):
        is_mask = ((mask.lo == 0.0) | np.isneginf(mask.hi)).all()
        if is_mask and np.isneginf(mask.hi).any() and mask.is_exact:
            low = mask.lo + bias.lo
            high = low if bias.is_exact else mask.lo + bias.hi
            return Operand(low, high, {**mask.sources, **bias.sources})
    return None


def bias(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Merge a shift per output of a matrix, or per channel of a convolution, into its bias."""
    if not isinstance(step.op, Shift) or rewriter.readers.get(step.inputs[0]) != 1:
        return None
    name = step.inputs[0]
    found: tuple[Dense | Conv, Step] | None = rewriter.made(name, Dense)
    found = found or rewriter.made(name, Conv)
    if found is None or found[0].bias is not None:
        return None
    axis = 1 if isinstance(found[0], Conv) else -1
    offset = step.op.offset
    if not offset.lo.size == step.shape[axis] == offset.shape[axis]:
        return None
    low = offset.lo.reshape(-1)
    high = low if offset.is_exact else offset.hi.reshape(-1)
    op = replace(found[0], bias=replace(offset, lo=low, hi=high))
    return [replace(step, op=op, inputs=found[1].inputs)]


def log_of_softmax(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine ln softmax(x): probabilities are positive for all x."""
    soft = rewriter.made(step.inputs[0], Softmax)
    if soft is None or soft[0].logarithm:
        return None
    return [replace(step, op=replace(soft[0], logarithm=True), inputs=soft[1].inputs)]


def move_of_move(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Merge two selections of entries, one after the other, into one."""
    inner = rewriter.made(step.inputs[0], Move) if isinstance(step.op, Move) else None
    if inner is None or not isinstance(step.op, Move):
        return None
    sources = np.asarray(inner[0].sources.reshape(-1)[step.op.sources])
    sources[step.op.sources < 0] = -1
    return [replace(step, op=Move(sources), inputs=inner[1].inputs)]
