"""Recombine norms and normalizations that exporters write as several nodes.

As in `macros`, every rule is an identity of real functions, for the numbers in the file.
"""

import math
from dataclasses import replace

import numpy as np

from lipcert.core.interval import exact
from lipcert.core.kinds import Centre, Divide, DivideByNorm, ReduceNorm
from lipcert.core.lower.entrywise import plain
from lipcert.core.lower.gates import ONE, as_interval, chain, number_in
from lipcert.core.lower.rewriter import Rewriter
from lipcert.core.program import Activation, Move, Step
from lipcert.core.token_kinds import Add, Multiply, Normalize, ReduceSum


def length(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine √(Σx² + c) with one number c ≥ 0, or √(k·Σx²), also of a mean.

    A standard deviation, of x minus its mean, is such a root: its slope is bounded, unlike that
    of √. Moves of entries in between commute with functions of single ones.
    """
    if not isinstance(step.op, Activation) or step.op.name != "sqrt":
        return None
    offset, total = rewriter.shifted(step.inputs[0]) or (None, step.inputs[0])
    share, total = rewriter.scaled(total) if offset is None else (None, total)
    move = rewriter.made(total, Move)
    summed = rewriter.made(total if move is None else move[1].inputs[0], ReduceSum)
    square = rewriter.function(summed[1].inputs[0], "power") if summed else None
    if move is not None and (move[0].sources < 0).any():
        return None
    if summed is None or square is None or square[0].numbers != (2.0,):
        return None
    factor = as_interval(share)
    if summed[0].mean:
        count = math.prod(rewriter.shapes[square[1]]) // math.prod(summed[1].shape)
        factor = factor * exact(float(count)).reciprocal()
    if offset is not None and (summed[0].mean or not (offset.is_exact and offset.lo.item() >= 0.0)):
        return None
    if not 0.0 < factor.lo <= factor.hi < math.inf:
        return None
    rewriter.swallow(offset, share)
    op = ReduceNorm(summed[0].axes, 2, 0.0 if offset is None else float(offset.lo.item()))
    root = ONE if number_in(factor) == 1 else factor.root()
    if move is None:
        return chain(rewriter, step, square[1], op, root)
    norm = Step(op, (square[1],), rewriter.sink.fresh(step.output), summed[1].shape, step.node)
    return [norm, *chain(rewriter, step, norm.output, move[0], root)]


def normalize(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine d/√(mean of d² + ε), where d may be x minus its mean over the same axes."""
    value, under = _over_root(rewriter, step)
    offset, total = rewriter.shifted(under) or (None, "")
    mean = rewriter.made(total, ReduceSum)
    square = rewriter.function(mean[1].inputs[0], "power") if mean else None
    if offset is None or mean is None or square is None or not mean[0].mean:
        return None
    if square[0].numbers != (2.0,) or square[1] != value or step.shape != rewriter.shapes[value]:
        return None
    if not offset.is_exact or offset.lo.item() <= 0.0:
        return None
    rewriter.swallow(offset)
    axes, epsilon = mean[0].axes, float(offset.lo.item())
    x = _centred(rewriter, value, axes)
    op = Normalize(axes, epsilon, centred=x is not None)
    return [replace(step, op=op, inputs=(x or value,))]


def _over_root(rewriter: Rewriter, step: Step) -> tuple[str, str]:
    """Return d and t for a value d/√t, or two empty names."""
    if isinstance(step.op, Divide):
        root = rewriter.function(step.inputs[1], "sqrt")
        return (step.inputs[0], root[1]) if root else ("", "")
    if isinstance(step.op, Multiply):
        for value, other in (step.inputs, step.inputs[::-1]):
            inverse = rewriter.function(other, "reciprocal")
            root = rewriter.function(inverse[1], "sqrt") if inverse else None
            power = rewriter.function(other, "power")
            if root is not None:
                return value, root[1]
            if power is not None and power[0].numbers == (-0.5,):
                return value, power[1]
    return "", ""


def _centred(rewriter: Rewriter, value: str, axes: tuple[int, ...]) -> str | None:
    """Return x if the value is x minus its mean over the axes, else None."""
    found = rewriter.made(value, Centre)
    return found[1].inputs[0] if found is not None and found[0].axes == axes else None


def centre(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine x minus its mean over axes."""
    if not isinstance(step.op, Add) or step.op.signs != (1, -1):
        return None
    x, average = step.inputs
    mean = rewriter.made(average, ReduceSum)
    if mean is None or not mean[0].mean or mean[1].inputs != (x,):
        return None
    return [replace(step, op=Centre(mean[0].axes), inputs=(x,))]


def divide_by_norm(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine x over its norm times a number, or over a floor where the floor is larger.

    Without a floor x/‖x‖ has no value at 0, where the step has the value 0.
    """
    if not isinstance(step.op, Divide):
        return None
    x, divisor = step.inputs
    clip = rewriter.function(_unstretched(rewriter, divisor), "clip")
    if clip is None or not 0.0 < clip[0].numbers[0] < math.inf == clip[0].numbers[1]:
        return None
    share, inner = rewriter.scaled(clip[1])
    norm = rewriter.made(inner, ReduceNorm)
    if step.shape != rewriter.shapes[x]:
        return None
    if norm is None or norm[0] != ReduceNorm(norm[0].axes, 2, 0.0) or norm[1].inputs != (x,):
        return None
    if share is not None and not 0.0 < share.lo.item() <= share.hi.item() < math.inf:
        return None
    rewriter.swallow(share)
    op = DivideByNorm(norm[0].axes, share or plain(1.0, len(step.shape)), clip[0].numbers[0])
    return [replace(step, op=op, inputs=(x,))]


def _unstretched(rewriter: Rewriter, name: str) -> str:
    """Return the value that a move only repeats along axes, as broadcasting would."""
    move = rewriter.made(name, Move)
    if move is None:
        return name
    before, after = rewriter.shapes[move[1].inputs[0]], move[1].shape
    if len(before) != len(after) or any(
        b not in {1, a} for b, a in zip(before, after, strict=True)
    ):
        return name
    entries = np.arange(math.prod(before), dtype=np.int64).reshape(before)
    is_repeat = np.array_equal(np.broadcast_to(entries, after), move[0].sources)
    return move[1].inputs[0] if is_repeat else name
