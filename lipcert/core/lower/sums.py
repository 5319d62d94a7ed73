"""Sums of values and constants, and multiples by a number, to which several operators reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.moves import broadcast, indices, moved
from lipcert.core.lower.values import Constant, Data, Value, is_finite
from lipcert.core.program import Add, Operand, Place, Scale, Shape, Shift, then

_MOST_TERMS: Final = 8


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
    """Σ ±x: data first, then a shift by every constant, or by each of the terms that it adds up."""
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
            for term in value.terms or (value,):
                offset = (term if sign > 0 else negative(term)).operand(len(shape))
                total = call.step(Shift(offset), total, shape=shape, place=place)
    return total


def negative(constant: Constant) -> Constant:
    """The same entries with the other sign."""
    low = -constant.hi
    high = low if constant.lo is constant.hi else -constant.lo
    acts, terms = then(constant.acts, np.negative), tuple(map(negative, constant.terms))
    return replace(constant, lo=low, hi=high, acts=acts, terms=terms)


def sum_of(parts: Sequence[Constant]) -> tuple[Constant, ...]:
    """The terms of a sum of parts of one shape, some of which come from tensors of the file."""
    terms = [term for part in parts for term in part.terms or (part,)]
    terms = [item for item in terms if item.sources or item.lo.any() or item.hi.any()]
    is_plain = all(
        item.is_float and not item.marks.any() and is_finite(item.lo) and is_finite(item.hi)
        for item in terms
    )
    is_sum = len(terms) <= _MOST_TERMS and any(item.sources for item in terms)
    return tuple(terms) if is_plain and is_sum else ()


def terms_beside(parts: Sequence[Constant], axis: int) -> tuple[Constant, ...]:
    """The terms of parts put one after another: each with zeros before and behind it."""
    if len(parts) > _MOST_TERMS:
        return ()
    ends = np.cumsum([part.shape[axis] for part in parts])
    padded = []
    for part, end in zip(parts, ends, strict=True):
        widths = [(0, 0)] * len(part.shape)
        widths[axis] = (end - part.shape[axis], ends[-1] - end)
        padded.append(part.rearranged(partial(np.pad, pad_width=widths), part.place))
    return sum_of(padded)
