"""Max and Min of data and constants."""

from __future__ import annotations

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.entry_ops import check_alike
from lipcert.core.lower.function_choices import limited
from lipcert.core.lower.functions import activated
from lipcert.core.lower.moves import broadcast, indices, moved
from lipcert.core.lower.sums import combined, expanded
from lipcert.core.lower.values import Constant, Data, Value, only_data
from lipcert.core.program import Concat, ReduceMax


def extremum(call: Call) -> Value:
    """Max and Min: of the data, then with every constant."""
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
    """The extremum of two values, side by side on a new last axis.

    One stack serves the maximum and the minimum of a pair.
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
