"""Ops that work entry by entry, with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import round_down, round_up
from lipcert.core.exponential import log_bounds
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.function_choices import limited
from lipcert.core.lower.functions import activated
from lipcert.core.lower.reals import quotient, sum_of_sources
from lipcert.core.lower.sums import combined, expanded, scaled
from lipcert.core.lower.values import Constant, Data, Value, broadcast, indices, only_data
from lipcert.core.program import Concat, Divide, Multiply, Operand, PRelu, ReduceMax, Scale, then


def _check_alike(call: Call) -> None:
    """Before operator set 8, Sum, Max and Min do not broadcast."""
    if call.version < 8 and len({(value.shape, value.place) for value in call.values()}) > 1:
        raise Unsupported("its inputs have different shapes")


def _sum(call: Call) -> Value:
    if call.node.op_type == "Sum":
        _check_alike(call)
    values = call.values()
    if any(isinstance(item, Data) and item.kind == "hiding" for item in values):
        from lipcert.core.lower.truth import hidden_sum  # noqa: PLC0415  for such masks only

        return hidden_sum(call)
    return combined(call, values, (1,) * len(call))


def _difference(call: Call) -> Value:
    return combined(call, call.values(), (1, -1))


def _times(call: Call, value: Data, factor: Constant) -> Data:
    shape, place = broadcast((value, factor))
    full = expanded(call, value, shape, place)
    return call.step(Scale(factor.operand(len(shape))), full, shape=shape, place=place)


def _product(call: Call) -> Value:
    first, second = call.value(0), call.value(1)
    if isinstance(first, Constant):
        return _times(call, call.data(1), first)
    if isinstance(second, Constant):
        return _times(call, first, second)
    if first == second:
        return activated(call, first, "power", 2.0)
    shape, place = broadcast((first, second))
    return call.step(Multiply(), first, second, shape=shape, place=place)


def _ratio(call: Call) -> Value:
    first, second = call.value(0), call.value(1)
    if isinstance(second, Constant):
        inverse = quotient(second)
        acts = then(second.acts, lambda entries: 1.0 / entries)
        sources = sum_of_sources(second)
        factor = Constant(inverse.lo, inverse.hi, sources, second.place, acts=acts)
        return _times(call, call.data(0), factor)
    if isinstance(first, Constant):
        return _times(call, activated(call, second, "reciprocal"), first)
    shape, place = broadcast((first, second))
    return call.step(Divide(), first, second, shape=shape, place=place)


def _power(call: Call) -> Value:
    """x^c, or c^x = e^(x·ln c) with one number c."""
    if isinstance(call.value(0), Constant):
        return _exponential(call)
    value, exponent = call.data(0), call.constant(1).uniform()
    if exponent is None or not math.isfinite(exponent):
        raise Unsupported("its exponent is not one exact finite number")
    call.sink.untracked.update(call.constant(1).sources)
    shape, place = broadcast((value, call.value(1)))
    value = expanded(call, value, shape, place)
    match exponent:
        case 1.0:
            return value
        case 0.5:
            return activated(call, value, "sqrt")
        case -1.0:
            return activated(call, value, "reciprocal")
        case _:
            return activated(call, value, "power", exponent)


def _exponential(call: Call) -> Value:
    base, exponent = call.constant(0), call.data(1)
    number = base.uniform()
    if number is None or not 0.0 < number < math.inf:
        raise Unsupported("its base is not one exact positive number")
    call.sink.untracked.update(base.sources)
    shape, place = broadcast((base, exponent))
    low, high = log_bounds(Fraction(number))
    ends = (np.full((1,) * len(shape), end) for end in (round_down(low), round_up(high)))
    factor = Operand(next(ends), next(ends))
    value = expanded(call, exponent, shape, place)
    value = call.step(Scale(factor), value, shape=shape, place=place)
    return activated(call, value, "exp")


def _extremum(call: Call) -> Value:
    """Max and Min: of the data, then with every constant."""
    _check_alike(call)
    shape, place = broadcast(call.values())
    smallest = call.node.op_type == "Min"
    total = call.data(next(i for i, v in enumerate(call.values()) if isinstance(v, Data)))
    for value in call.values():
        if isinstance(value, Data) and value != total:
            total = _larger(call, total, value, smallest=smallest)
    total = expanded(call, total, shape, place)
    for value in call.values():
        if isinstance(value, Constant):
            total = _limited(call, total, value, smallest=smallest)
    return total


def _limited(call: Call, value: Data, limit: Constant, *, smallest: bool) -> Data:
    """max(x, c) = c + relu(x − c) or min(x, c) = c − relu(c − x); a clip with one exact number."""
    number = limit.uniform() if limit.lo.size == 1 or not limit.sources else None
    if number is not None:
        call.sink.untracked.update(limit.sources)
        return only_data(limited(call, value, number, smallest=smallest))
    sign = -1 if smallest else 1
    above = activated(call, combined(call, (value, limit), (sign, -sign)), "relu")
    return combined(call, (above, limit), (sign, 1))


def _larger(call: Call, first: Data, second: Data, *, smallest: bool) -> Data:
    """The extremum of two values, side by side on a new last axis.

    One stack serves the maximum and the minimum of a pair.
    """
    shape, place = broadcast((first, second))
    pair = (min(first.name, second.name), max(first.name, second.name))
    stack = call.sink.stacks.get(pair)
    if stack is None or stack.shape != (*shape, 2):
        columns = [
            call.moved(v, np.broadcast_to(indices(v.shape), shape)[..., None], place)
            for v in (first, second)
        ]
        stack = call.step(Concat(len(shape)), *columns, shape=(*shape, 2), place=place)
        call.sink.stacks[pair] = stack
    op = ReduceMax((len(shape),), smallest)
    column = call.step(op, stack, shape=(*shape, 1), place=place)
    return call.moved(column, indices(shape), place)


def _choice(call: Call) -> Value:
    """Where; with a constant condition m: m·a + (1 − m)·b, or x + (0 or −inf)."""
    if isinstance(call.value(0), Data):
        from lipcert.core.lower.truth import chosen  # noqa: PLC0415  for such masks only

        return chosen(call)
    mask, first, second = call.constant(0), call.value(1), call.value(2)
    mask.check_fixed()
    if mask.lo.dtype.kind != "b":
        raise Unsupported("the condition is not a truth value")
    parts: list[Value] = []
    for flags, value in ((mask.lo, first), (~mask.lo, second)):
        weight = Constant(*2 * (flags.astype(np.float64),), {}, mask.place)
        if isinstance(value, Data):
            parts.append(_times(call, value, weight))
            continue
        value.check_fixed()
        if np.isneginf(value.hi).all():
            other = second if value is first else first
            call.sink.untracked.update(value.sources)
            if isinstance(other, Data):
                shape, place = broadcast((mask, value))
                hidden = np.broadcast_to(np.where(flags, -np.inf, 0.0), shape)
                return combined(call, (other, Constant(hidden, hidden, {}, place)), (1, 1))
        if not (np.isfinite(value.lo) & np.isfinite(value.hi)).all():
            raise Unsupported("a constant is not finite")
        _, place = broadcast((mask, value))
        low = np.where(flags, value.lo, 0.0)
        high = low if value.lo is value.hi else np.where(flags, value.hi, 0.0)
        parts.append(Constant(low, high, sum_of_sources(value), place))
    return combined(call, parts, (1, 1))


def _prelu(call: Call) -> Value:
    value, slope = call.data(0), call.constant(1)
    shape, place = broadcast((value, slope))
    if shape != value.shape:
        raise Unsupported("its slopes enlarge the value")
    return call.step(PRelu(slope.operand(len(shape))), value, shape=shape, place=place)


def _negative(call: Call) -> Value:
    return scaled(call, call.data(), -1.0)


ENTRY_OPS: Final[Mapping[str, Callable[[Call], Value]]] = {
    "Add": _sum,
    "Div": _ratio,
    "Max": _extremum,
    "Min": _extremum,
    "Mul": _product,
    "Neg": _negative,
    "PRelu": _prelu,
    "Pow": _power,
    "Sub": _difference,
    "Sum": _sum,
    "Where": _choice,
}
