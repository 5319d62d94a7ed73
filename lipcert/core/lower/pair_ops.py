"""Lower Where, Max, Min and Pow of two values, entry by entry; one may be constant."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import round_down, round_up
from lipcert.core.kinds import Concat, ReduceMax
from lipcert.core.logarithm import log_bounds
from lipcert.core.lower.call import Call
from lipcert.core.lower.constant_node import sum_of_sources
from lipcert.core.lower.entry_ops import check_alike, times
from lipcert.core.lower.entrywise import broadcast, combined, expanded
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.function_choices import limited
from lipcert.core.lower.functions import activated
from lipcert.core.lower.moves import indices, moved
from lipcert.core.lower.values import Constant, Data, Value, only_data
from lipcert.core.program import Operand
from lipcert.core.token_kinds import Scale


def choice(call: Call) -> Value:
    """Lower Where; with a constant condition m it is m·a + (1 − m)·b, or x + (0 or −inf)."""
    if isinstance(call.value(0), Data):
        from lipcert.core.lower.truth import chosen  # noqa: PLC0415  for such masks only

        return chosen(call)
    mask, first, second = call.constant(0), call.value(1), call.value(2)
    mask.check_fixed()
    call.sink.untracked.update(mask.sources)
    if mask.lo.dtype.kind != "b":
        raise Unsupported("the condition is not a truth value")
    parts: list[Value] = []
    for flags, value in ((mask.lo, first), (~mask.lo, second)):
        weight = Constant.of(flags.astype(np.float64), mask.place)
        if isinstance(value, Data):
            parts.append(times(call, value, weight))
            continue
        value.check_fixed()
        if np.isneginf(value.hi).all():
            other = second if value is first else first
            call.sink.untracked.update(value.sources)
            if isinstance(other, Data):
                shape, place = broadcast((mask, value))
                hidden = np.broadcast_to(np.where(flags, -np.inf, 0.0), shape)
                return combined(call, (other, Constant.of(hidden, place)), (1, 1))
        if not (np.isfinite(value.lo) & np.isfinite(value.hi)).all():
            raise Unsupported("a constant is not finite")
        _, place = broadcast((mask, value))
        low = np.where(flags, value.lo, 0.0)
        high = low if value.lo is value.hi else np.where(flags, value.hi, 0.0)
        part = Constant(low, high, sum_of_sources(value), place)
        if value.sources:
            from lipcert.core.lower.slopes import chained, repeated  # noqa: PLC0415  for such alone

            part = replace(part, slopes=chained((value, repeated(value, low.shape))))
        parts.append(part)
    return combined(call, parts, (1, 1))


def extremum(call: Call) -> Value:
    """Lower Max and Min: first of the data, then with every constant."""
    check_alike(call)
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
    """Return the maximum or minimum of two values, side by side on a new last axis.

    The maximum and the minimum of a pair share one stack.
    """
    shape, place = broadcast((first, second))
    pair = (min(first.name, second.name), max(first.name, second.name))
    stack = call.sink.stacks.get(pair)
    if stack is None or stack.shape != (*shape, 2):
        columns = [
            moved(call, v, np.broadcast_to(indices(v.shape), shape)[..., None], place)
            for v in (first, second)
        ]
        stack = call.step(Concat(len(shape)), *columns, shape=(*shape, 2), place=place)
        call.sink.stacks[pair] = stack
    op = ReduceMax((len(shape),), smallest)
    column = call.step(op, stack, shape=(*shape, 1), place=place)
    return moved(call, column, indices(shape), place)


def power(call: Call) -> Value:
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
