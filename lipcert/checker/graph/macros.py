"""Layers that exporters write in several nodes, put together again.

Every rule is an identity of real functions, for the numbers that stand in the file: a gate with
the float32 number next to 1/√2 is a GELU between two scalings by numbers next to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product as pairs

import numpy as np

from lipcert.checker.arithmetic import multiply_up, sqrt_down, sqrt_up
from lipcert.checker.graph.call import Sink
from lipcert.checker.graph.program import (
    Activation,
    Add,
    Attention,
    Concat,
    Conv,
    Dense,
    Divide,
    MatMul,
    Move,
    Multiply,
    Normalize,
    Operand,
    ReduceMax,
    ReduceNorm,
    ReduceSum,
    Scale,
    Shift,
    Softmax,
    Sort,
    Step,
)
from lipcert.checker.graph.rewriter import ONE, Rewriter, Rule, as_operand, needed_steps, product
from lipcert.checker.graph.values import Data
from lipcert.checker.interval import Interval, exact

__all__ = ["needed_steps", "rewritten"]

_HIDDEN = -1000.0
"""entries of a mask that are there to hide, and not to be trained"""
_ROOT_TWO = Interval(np.asarray(sqrt_down(2)), np.asarray(sqrt_up(2)))


def rewritten(raw: tuple[Step, ...], start: Data, output: str, sink: Sink) -> tuple[Step, ...]:
    """The steps with layers in place of their spellings."""
    rewriter = Rewriter(start.name, start.shape, raw, sink)
    return rewriter.run(raw, _RULES, output)


def _is(operand: Operand, number: float) -> bool:
    return operand.is_exact and bool((operand.lo == number).all())


def _as_interval(operand: Operand | None) -> Interval:
    if operand is None:
        return ONE
    return Interval(operand.lo.reshape(()), operand.hi.reshape(()))


# moves ----------------------------------------------------------------------------------------


def _move_of_move(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """One selection of entries after another is one."""
    inner = rewriter.made(step.inputs[0], Move) if isinstance(step.op, Move) else None
    if inner is None or not isinstance(step.op, Move):
        return None
    sources = np.append(inner[0].sources.reshape(-1), -1)[step.op.sources]
    return [replace(step, op=Move(sources), inputs=inner[1].inputs)]


def _concat_of_moves(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Selections of entries of one value, side by side, are one selection."""
    if not isinstance(step.op, Concat):
        return None
    found = [rewriter.made(name, Move) for name in step.inputs]
    moves = [item for item in found if item is not None]
    if len(moves) < len(found) or len({inner.inputs for _, inner in moves}) != 1:
        return None
    sources = np.concatenate([op.sources for op, _ in moves], axis=step.op.axis)
    return [replace(step, op=Move(sources), inputs=moves[0][1].inputs)]


def _max_min(rewriter: Rewriter, step: Step) -> list[Step] | None:
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
    both = product(_as_interval(factor), _as_interval(inner[0].factor))
    size = float(_as_interval(inner[0].factor).magnitude())
    sources = {name: multiply_up(gain, size) for name, gain in factor.sources.items()}
    op = Scale(replace(as_operand(both, len(step.shape)), sources=sources))
    return [replace(step, op=op, inputs=inner[1].inputs)]


# gates ----------------------------------------------------------------------------------------


def _gate(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """c·x times g(x): SiLU, GELU, Mish, HardSwish."""
    if not isinstance(step.op, Multiply):
        return None
    for value, gate in (step.inputs, step.inputs[::-1]):
        for (own, x), (other, inner) in pairs(
            _spellings(rewriter, value), _spellings(rewriter, gate)
        ):
            for ops in _gates(rewriter, x, inner):
                rewriter.swallow(own, other)
                factor = product(_as_interval(own), _as_interval(other))
                last = product(ops[-1], factor) if isinstance(ops[-1], Interval) else factor
                kept = ops[:-1] if isinstance(ops[-1], Interval) else ops
                return rewriter.chain(step, x, *kept, last)
    return None


def _spellings(rewriter: Rewriter, name: str) -> list[tuple[Operand | None, str]]:
    """The value itself, and as a number times another one."""
    factor, inner = rewriter.scaled(name)
    return [(None, name)] if factor is None else [(None, name), (factor, inner)]


def _gates(rewriter: Rewriter, x: str, gate: str) -> Iterator[list[Activation | Interval]]:
    """Functions whose composition is x times the gate."""
    sigmoid = rewriter.function(gate, "sigmoid")
    if sigmoid is not None:
        yield from _sigmoid_gate(rewriter, x, sigmoid[1])
    tanh = rewriter.function(gate, "tanh")
    softplus = rewriter.function(tanh[1], "softplus") if tanh else None
    if softplus is not None and softplus[1] == x:
        yield [Activation("mish")]
    yield from _hard_gate(rewriter, x, gate)
    shifted = rewriter.shifted(gate)
    if shifted is not None and _is(shifted[0], 1.0):
        erf = rewriter.function(shifted[1], "erf")
        curve = rewriter.function(shifted[1], "tanh")
        if erf is not None:
            yield from _erf_gate(rewriter, x, erf[1], shifted[0])
        if curve is not None:
            yield from _tanh_gate(rewriter, x, curve[1], shifted[0])


def _sigmoid_gate(rewriter: Rewriter, x: str, inner: str) -> Iterator[list[Activation | Interval]]:
    """x·σ(x), or x·σ(a·x) for a > 0."""
    if inner == x:
        yield [Activation("silu")]
    factor, base = rewriter.scaled(inner)
    if factor is not None and base == x and factor.is_exact and factor.lo.item() > 0.0:
        rewriter.swallow(factor)
        yield [Activation("quick_gelu", (float(factor.lo.item()),))]


def _hard_gate(rewriter: Rewriter, x: str, gate: str) -> Iterator[list[Activation | Interval]]:
    """x·clip(x + 3, 0, 6) = 6·hard_swish(x); x·hard_sigmoid(a, 1/2) = hard_swish(6a·x)/6a."""
    clip = rewriter.function(gate, "clip")
    shifted = rewriter.shifted(clip[1]) if clip and clip[0].numbers == (0.0, 6.0) else None
    if shifted is not None and shifted[1] == x and _is(shifted[0], 3.0):
        rewriter.swallow(shifted[0])
        yield [Activation("hard_swish"), exact(6.0)]
    hard = rewriter.function(gate, "hard_sigmoid")
    if hard is not None and hard[1] == x and hard[0].numbers[0] > 0 and hard[0].numbers[1] == 0.5:
        slope = product(exact(6.0), exact(hard[0].numbers[0]))
        yield [slope, Activation("hard_swish"), slope.reciprocal()]


def _erf_gate(
    rewriter: Rewriter, x: str, inner: str, one: Operand
) -> Iterator[list[Activation | Interval]]:
    """x·(1 + erf(a·x)) = 2·gelu(s·x)/s for s = √2·a > 0, since gelu(u) = u/2·(1 + erf(u/√2))."""
    factor, base = rewriter.scaled(inner)
    slope = product(_as_interval(factor), _ROOT_TWO)
    if base == x and float(slope.lo) > 0.0:
        rewriter.swallow(factor, one)
        yield [slope, Activation("gelu"), product(exact(2.0), slope.reciprocal())]


def _tanh_gate(
    rewriter: Rewriter, x: str, inner: str, one: Operand
) -> Iterator[list[Activation | Interval]]:
    """x·(1 + tanh(a·(x + b·x³))) = 2·gelu_tanh(x) with the file's own numbers a and b."""
    outer, total = rewriter.scaled(inner)
    added = rewriter.made(total, Add)
    if outer is None or not outer.is_exact or added is None or added[0].signs != (1, 1):
        return
    for first, second in (added[1].inputs, added[1].inputs[::-1]):
        share, degree = _monomial(rewriter, second, x) or (ONE, 0)
        if first == x and degree == 3 and share.lo == share.hi:
            numbers = (float(outer.lo.item()), float(share.lo.item()))
            rewriter.swallow(outer, one)
            yield [Activation("gelu_tanh", numbers), exact(2.0)]


def _monomial(rewriter: Rewriter, name: str, x: str) -> tuple[Interval, int] | None:
    """c and n for a value c·xⁿ, n ≤ 4."""
    if name == x:
        return ONE, 1
    factor, base = rewriter.scaled(name)
    if factor is not None:
        inner = _monomial(rewriter, base, x)
        rewriter.swallow(factor)
        return inner and (product(inner[0], _as_interval(factor)), inner[1])
    power = rewriter.function(name, "power")
    if power is not None and power[1] == x and power[0].numbers[0] in {2.0, 3.0}:
        return ONE, int(power[0].numbers[0])
    both = rewriter.made(name, Multiply)
    parts = [_monomial(rewriter, item, x) for item in both[1].inputs] if both else []
    known = [part for part in parts if part is not None]
    if len(known) != 2 or known[0][1] + known[1][1] > 4:
        return None
    return product(known[0][0], known[1][0]), known[0][1] + known[1][1]


# norms ----------------------------------------------------------------------------------------


def _norm(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """√(Σx² + c) with one number c ≥ 0."""
    if not isinstance(step.op, Activation) or step.op.name != "sqrt":
        return None
    offset, total = rewriter.shifted(step.inputs[0]) or (None, step.inputs[0])
    summed = rewriter.made(total, ReduceSum)
    square = rewriter.function(summed[1].inputs[0], "power") if summed else None
    if summed is None or summed[0].mean or square is None or square[0].numbers != (2.0,):
        return None
    if offset is not None and not (offset.is_exact and offset.lo.item() >= 0.0):
        return None
    rewriter.swallow(offset)
    floor = 0.0 if offset is None else float(offset.lo.item())
    return [replace(step, op=ReduceNorm(summed[0].axes, 2, floor), inputs=(square[1],))]


def _normalize(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """d/√(mean of d² + ε), where d may be x less its mean over the same axes."""
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
    """d and t for a value d/√t."""
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
    """x, where the value is x less its mean over the axes."""
    difference = rewriter.made(value, Add)
    if difference is None or difference[0].signs != (1, -1):
        return None
    x, average = difference[1].inputs
    mean = rewriter.made(average, ReduceSum)
    found = mean is not None and mean[0] == ReduceSum(axes, mean=True) and mean[1].inputs == (x,)
    return x if found else None


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
    _move_of_move,
    _concat_of_moves,
    _max_min,
    _bias,
    _scale_of_scale,
    _gate,
    _norm,
    _normalize,
    _attention,
)
