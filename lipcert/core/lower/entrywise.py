"""What operators that act entry by entry share: broadcasting, sums, multiples and quotients."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import MixingError, Unsupported
from lipcert.core.lower.moves import indices, moved
from lipcert.core.lower.values import FIXED, Constant, Data, Value, check_size
from lipcert.core.program import Operand, Place, Shape, then
from lipcert.core.token_kinds import Add, Scale, Shift


def scaled(call: Call, value: Data, factor: float) -> Data:
    """Multiply the value by an exact number."""
    if factor == 1.0:
        return value
    array = np.full((1,) * len(value.shape), factor)
    op = Scale(Operand(array, array))
    return call.step(op, value, shape=value.shape, place=value.place)


def expanded(call: Call, value: Data, shape: Shape, place: Place | None) -> Data:
    """Repeat the value along axes other than the batch axis."""
    return moved(call, value, np.broadcast_to(indices(value.shape), shape), place)


def broadcast(values: Sequence[Value]) -> tuple[Shape, Place | None]:
    """Return the common shape of tensors combined entry by entry, and the batch's place in it.

    Proof: all that depend on N have its dimension before·N·after on the same axis of the result,
    and all others are repeated along that axis, so an entry of example i meets those of example i.
    """
    shape = check_size(np.broadcast_shapes(*(value.shape for value in values)))
    found = {
        (
            value.place.axis + len(shape) - len(value.shape),
            value.place.before,
            value.shape[value.place.axis],
        )
        for value in values
        if value.place is not None
    }
    if len(found) > 1:
        raise MixingError("its inputs carry the batch on different axes, or in different ways")
    if not found:
        return shape, None
    axis, before, _ = next(iter(found))
    for value in values:
        own = axis - len(shape) + len(value.shape)
        if value.place is None and own >= 0 and value.shape[own] != 1:
            raise Unsupported(FIXED)
    return shape, Place(axis, before)


def combined(call: Call, values: Sequence[Value], signs: Sequence[int]) -> Data:
    """Σ ±x: first the data, then a shift by every constant, or by each term of its sum."""
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
    """Return the entries with the opposite sign."""
    low = -constant.hi
    high = low if constant.lo is constant.hi else -constant.lo
    acts, terms = then(constant.acts, np.negative), tuple(map(negative, constant.terms))
    return replace(constant, lo=low, hi=high, acts=acts, terms=terms, blocks={})


def interval(constant: Constant) -> Interval:
    """Return the interval of the entries; refuse constants that are not real."""
    constant.check_fixed()
    if not constant.is_float:
        raise Unsupported("constants of different types are combined")
    return Interval(constant.lo, constant.hi)


def quotient(constant: Constant) -> Interval:
    """Enclose 1/c; it is exact if c is a power of two."""
    known = interval(constant)
    if ((known.lo <= 0.0) & (known.hi >= 0.0)).any():
        raise Unsupported("a divisor may be 0")
    mantissa, _ = np.frexp(known.lo)
    with np.errstate(over="ignore", under="ignore"):
        inverse = known.reciprocal()
        exact = 1.0 / known.lo
    is_power = (known.lo == known.hi) & (np.abs(mantissa) == 0.5) & np.isfinite(exact)
    is_power &= np.abs(exact) >= np.finfo(np.float64).tiny
    low, high = np.where(is_power, exact, inverse.lo), np.where(is_power, exact, inverse.hi)
    return Interval(low, low if is_power.all() else high)
