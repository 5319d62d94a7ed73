"""Sums of values and constants, and multiples by a number, to which several operators reduce."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.moves import broadcast, indices, moved
from lipcert.core.lower.values import Constant, Data, Value
from lipcert.core.program import Add, Operand, Place, Scale, Shape, Shift


def _plain(number: float, rank: int) -> Operand:
    """One number of the definition of an op."""
    array = np.full((1,) * rank, number)
    return Operand(array, array)


def scaled(call: Call, value: Data, factor: float) -> Data:
    """The value times an exact number."""
    if factor == 1.0:
        return value
    op = Scale(_plain(factor, len(value.shape)))
    return call.step(op, value, shape=value.shape, place=value.place)


def expanded(call: Call, value: Data, shape: Shape, place: Place | None) -> Data:
    """Repeated along axes other than the batch's."""
    return moved(call, value, np.broadcast_to(indices(value.shape), shape), place)


def combined(call: Call, values: Sequence[Value], signs: Sequence[int]) -> Data:
    """Σ ±x: data first, then a shift by every constant."""
    shape, place = broadcast(values)
    data = [(v, s) for v, s in zip(values, signs, strict=True) if isinstance(v, Data)]
    if len(data) > 1:
        inner, where = broadcast([value for value, _ in data])
        op = Add(tuple(sign for _, sign in data))
        total = call.step(op, *(value for value, _ in data), shape=inner, place=where)
        total = expanded(call, total, shape, place)
    else:
        total = expanded(call, data[0][0], shape, place)
        total = scaled(call, total, float(data[0][1]))
    for value, sign in zip(values, signs, strict=True):
        if isinstance(value, Constant):
            offset = (value if sign > 0 else value.negative()).operand(len(shape))
            total = call.step(Shift(offset), total, shape=shape, place=place)
    return total
