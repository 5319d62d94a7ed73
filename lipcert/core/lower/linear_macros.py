"""Merge steps into the step before them: biases and moves.

As in `macros`, every rule is an identity of real functions, for the numbers in the file.
"""

from dataclasses import replace

import numpy as np

from lipcert.core.lower.rewriter import Rewriter
from lipcert.core.program import Dense, Move, Step
from lipcert.core.token_kinds import Shift
from lipcert.core.window_kinds import Conv


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


def move_of_move(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Merge two selections of entries, one after the other, into one."""
    inner = rewriter.made(step.inputs[0], Move) if isinstance(step.op, Move) else None
    if inner is None or not isinstance(step.op, Move):
        return None
    sources = np.asarray(inner[0].sources.reshape(-1)[step.op.sources])
    sources[step.op.sources < 0] = -1
    return [replace(step, op=Move(sources), inputs=inner[1].inputs)]
