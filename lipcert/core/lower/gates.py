"""Recombine factors, and gates x·g(x), that exporters write as several nodes.

The gates are SiLU, GELU, Mish and HardSwish. As in `macros`, every rule is an identity of real
functions, for the numbers in the file.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product as pairs

import numpy as np

from lipcert.core.arithmetic import multiply_up, sqrt_down, sqrt_up
from lipcert.core.interval import Interval, exact
from lipcert.core.lower.rewriter import Rewriter
from lipcert.core.program import Activation, Op, Operand, Step, then
from lipcert.core.token_kinds import Add, Multiply, Scale

ONE = exact(1.0)
_ROOT_TWO = Interval(np.asarray(sqrt_down(2)), np.asarray(sqrt_up(2)))


def number_in(factor: Interval) -> Fraction | None:
    """Return the number of an interval that contains only one, else None."""
    same = factor.lo.reshape(-1)[0] == factor.hi.reshape(-1)[0]
    return Fraction(float(factor.lo.reshape(-1)[0])) if same else None


def product(*factors: Interval) -> Interval:
    """Return the product of numbers given as intervals; it is exact if it is a float64."""
    result = ONE
    for factor in factors:
        left, right = number_in(result), number_in(factor)
        rounded = float(result.lo.reshape(-1)[0] * factor.lo.reshape(-1)[0])
        if left is not None and right is not None and Fraction(rounded) == left * right:
            result = exact(rounded)
        else:
            result = result * factor
    return result


def as_interval(operand: Operand | None) -> Interval:
    """Return the one number of an operand; 1 if there is no operand."""
    if operand is None:
        return ONE
    return Interval(operand.lo.reshape(()), operand.hi.reshape(()))


def as_operand(factor: Interval, rank: int) -> Operand:
    """Return a number as an operand, for a value of this rank."""
    low = factor.lo.reshape((1,) * rank)
    return Operand(low, low if number_in(factor) is not None else factor.hi.reshape((1,) * rank))


def scale_of_scale(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Merge two scalings by one number each, if the first depends on no tensor of the file."""
    inner = rewriter.made(step.inputs[0], Scale) if isinstance(step.op, Scale) else None
    if inner is None or not isinstance(step.op, Scale) or inner[0].factor.sources:
        return None
    factor = step.op.factor
    if factor.lo.size != 1 or inner[0].factor.lo.size != 1:
        return None
    both = product(as_interval(factor), as_interval(inner[0].factor))
    size = float(as_interval(inner[0].factor).magnitude())
    sources = {name: multiply_up(gain, size) for name, gain in factor.sources.items()}
    acts = then(factor.acts, lambda entries: entries * inner[0].factor.lo.item())
    op = Scale(replace(as_operand(both, len(step.shape)), sources=sources, acts=acts))
    return [replace(step, op=op, inputs=inner[1].inputs)]


def _is(operand: Operand, number: float) -> bool:
    return operand.is_exact and bool((operand.lo == number).all())


def gate(rewriter: Rewriter, step: Step) -> list[Step] | None:
    """Recombine c·x times g(x): SiLU, GELU, Mish, HardSwish."""
    for value, gate in (step.inputs, step.inputs[::-1]):
        for (own, x), (other, inner) in pairs(
            _spellings(rewriter, value), _spellings(rewriter, gate)
        ):
            for ops in _gates(rewriter, x, inner):
                rewriter.swallow(own, other)
                factor = product(as_interval(own), as_interval(other))
                last = product(ops[-1], factor) if isinstance(ops[-1], Interval) else factor
                kept = ops[:-1] if isinstance(ops[-1], Interval) else ops
                return chain(rewriter, step, x, *kept, last)
    return None


def chain(rewriter: Rewriter, step: Step, start: str, *ops: Op | Interval) -> list[Step]:
    """Return a chain of steps that ends in the value of `step`; a number means a scaling by it."""
    made: list[Step] = []
    value, kept = start, [op for op in ops if not isinstance(op, Interval) or number_in(op) != 1]
    for place, op in enumerate(kept):
        name = step.output if place == len(kept) - 1 else rewriter.sink.fresh(step.output)
        real: Op = Scale(as_operand(op, len(step.shape))) if isinstance(op, Interval) else op
        made.append(Step(real, (value,), name, step.shape, step.node))
        value = name
    return made


def _spellings(rewriter: Rewriter, name: str) -> list[tuple[Operand | None, str]]:
    """Return the value itself and, if it is a number times another value, these two."""
    factor, inner = rewriter.scaled(name)
    return [(None, name)] if factor is None else [(None, name), (factor, inner)]


def _gates(rewriter: Rewriter, x: str, gate: str) -> Iterator[list[Activation | Interval]]:
    """Yield chains of functions whose composition is x times the gate."""
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
    slope = product(as_interval(factor), _ROOT_TWO)
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
    """Return c and n for a value c·xⁿ, n ≤ 4, or None."""
    if name == x:
        return ONE, 1
    factor, base = rewriter.scaled(name)
    if factor is not None:
        inner = _monomial(rewriter, base, x)
        rewriter.swallow(factor)
        return inner and (product(inner[0], as_interval(factor)), inner[1])
    power = rewriter.function(name, "power")
    if power is not None and power[1] == x and power[0].numbers[0] in {2.0, 3.0}:
        return ONE, int(power[0].numbers[0])
    both = rewriter.made(name, Multiply)
    parts = [_monomial(rewriter, item, x) for item in both[1].inputs] if both else []
    known = [part for part in parts if part is not None]
    if len(known) != 2 or known[0][1] + known[1][1] > 4:
        return None
    return product(known[0][0], known[1][0]), known[0][1] + known[1][1]
