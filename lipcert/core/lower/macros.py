"""Layers that exporters write in several nodes, put together again.

Every rule is an identity of real functions, for the numbers that stand in the file: a gate with
the float32 number next to 1/√2 is a GELU between two scalings by numbers next to 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.lower.call import Sink
from lipcert.core.lower.gates import GATES
from lipcert.core.lower.move_macros import concat_of_moves, max_min, move_of_move
from lipcert.core.lower.norm_macros import centre, divide_by_norm, length, normalize
from lipcert.core.lower.rewriter import (
    Rewriter,
    Rule,
    as_interval,
    as_operand,
    product,
)
from lipcert.core.lower.values import Data
from lipcert.core.program import (
    Attention,
    Conv,
    Dense,
    MatMul,
    Operand,
    Scale,
    Shift,
    Softmax,
    Step,
)

_HIDDEN = -1000.0
"""entries of a mask that are there to hide, and not to be trained"""


def rewritten(raw: tuple[Step, ...], start: Data, output: str, sink: Sink) -> tuple[Step, ...]:
    """The steps with layers in place of their spellings."""
    rewriter = Rewriter(start.name, start.shape, raw, sink)
    return rewriter.run(raw, _RULES, output)


# biases ---------------------------------------------------------------------------------------


def _bias(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """A shift per output of a matrix, or per channel of a convolution, is its bias."""
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
    op = replace(found[0], bias=Operand(low, high, offset.sources))
    return [replace(step, op=op, inputs=found[1].inputs)]


def _scale_of_scale(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """A number that a rule here introduced, and another one, are one number."""
    inner = rewriter.made(step.inputs[0], Scale) if isinstance(step.op, Scale) else None
    if inner is None or not isinstance(step.op, Scale) or inner[0].factor.sources:
        return None
    factor = step.op.factor
    if factor.lo.size != 1 or inner[0].factor.lo.size != 1:
        return None
    both = product(as_interval(factor), as_interval(inner[0].factor))
    size = float(as_interval(inner[0].factor).magnitude())
    sources = {name: multiply_up(gain, size) for name, gain in factor.sources.items()}
    op = Scale(replace(as_operand(both, len(step.shape)), sources=sources))
    return [replace(step, op=op, inputs=inner[1].inputs)]


# attention ------------------------------------------------------------------------------------


def _attention(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """softmax(c·q@k + mask)@v; a number c that is not exact, or is a parameter, scales q."""
    soft = rewriter.made(step.inputs[0], Softmax) if isinstance(step.op, MatMul) else None
    if soft is None or soft[0].logarithm or soft[0].axis != len(soft[1].shape) - 1:
        return None
    mask, scores = _masked(rewriter, soft[1].inputs[0])
    factor, inner = rewriter.scaled(scores)
    products = rewriter.made(inner, MatMul)
    if products is None:
        return None
    query, key = products[1].inputs
    values = step.inputs[1]
    if len({rewriter.shapes[name][:-2] for name in (query, key, values)}) != 1:
        return None
    if factor is None or (factor.is_exact and not factor.sources):
        scale = 1.0 if factor is None else float(factor.lo.item())
        op = Attention(scale, mask)
        return [replace(step, op=op, inputs=(query, key, values))]
    name, shape = rewriter.sink.fresh(step.output), rewriter.shapes[query]
    first = Step(Scale(factor), (query,), name, shape, step.node)
    return [first, replace(step, op=Attention(1.0, mask), inputs=(name, key, values))]


def _masked(rewriter: Rewriter, scores: str) -> tuple[Operand | None, str]:
    """The mask and what it is added to.

    One that hides a whole row is none, and one that hides nothing may be trained: it stays a step.
    """
    found = rewriter.made(scores, Shift)
    if found is None or not (found[0].offset.hi <= _HIDDEN).any():
        return None, scores
    mask = found[0].offset
    hidden = np.broadcast_to(np.isneginf(mask.hi), found[1].shape).all(axis=-1)
    if hidden.any() or not (mask.hi < np.inf).all():
        return None, scores
    rewriter.swallow(mask)
    return mask, found[1].inputs[0]


_RULES: tuple[Rule, ...] = (
    move_of_move,
    concat_of_moves,
    max_min,
    _bias,
    _scale_of_scale,
    *GATES,
    length,
    centre,
    normalize,
    divide_by_norm,
    _attention,
)
