"""Ops that work entry by entry, with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from lipcert.checker.graph.call import Call
from lipcert.checker.graph.constant_ops import quotient, sum_of_sources
from lipcert.checker.graph.errors import Unsupported
from lipcert.checker.graph.program import (
    Activation,
    Add,
    Concat,
    Divide,
    IndexArray,
    Multiply,
    Operand,
    PRelu,
    ReduceMax,
    Scale,
    Shape,
    Shift,
)
from lipcert.checker.graph.values import Constant, Data, Place, Value, broadcast, indices

__all__ = ["ENTRY_OPS", "activated", "combined", "concat", "plain", "scaled"]


def plain(number: float, rank: int) -> Operand:
    """One number of the definition of an op."""
    array = np.full((1,) * rank, number)
    return Operand(array, array)


def activated(call: Call, value: Data, name: str, *numbers: float) -> Data:
    """A function of every entry."""
    return call.step(Activation(name, numbers), value, shape=value.shape, place=value.place)


def scaled(call: Call, value: Data, factor: float) -> Data:
    """Times an exact number."""
    if factor == 1.0:
        return value
    op = Scale(plain(factor, len(value.shape)))
    return call.step(op, value, shape=value.shape, place=value.place)


def _expanded(call: Call, value: Data, shape: Shape, place: Place | None) -> Data:
    """Repeated along axes other than the batch's."""
    return call.moved(value, np.broadcast_to(indices(value.shape), shape), place)


def combined(call: Call, values: Sequence[Value], signs: Sequence[int]) -> Data:
    """Σ ±x: data first, then a shift by every constant."""
    shape, place = broadcast(values)
    data = [(v, s) for v, s in zip(values, signs, strict=True) if isinstance(v, Data)]
    if len(data) > 1:
        inner, where = broadcast([value for value, _ in data])
        op = Add(tuple(sign for _, sign in data))
        total = call.step(op, *(value for value, _ in data), shape=inner, place=where)
        total = _expanded(call, total, shape, place)
    else:
        total = _expanded(call, data[0][0], shape, place)
        total = scaled(call, total, float(data[0][1]))
    for value, sign in zip(values, signs, strict=True):
        if isinstance(value, Constant):
            offset = value.operand(len(shape))
            if sign < 0:
                low = -offset.hi
                offset = Operand(low, low if offset.is_exact else -offset.lo, offset.sources)
            total = call.step(Shift(offset), total, shape=shape, place=place)
    return total


def _sum(call: Call) -> Value:
    total = combined(call, call.values(), (1,) * len(call))
    if call.node.op_type == "Mean":
        known = np.full((1,) * len(total.shape), float(len(call)))
        inverse = quotient(Constant(known, known))
        op = Scale(Operand(inverse.lo, inverse.hi))
        return call.step(op, total, shape=total.shape, place=total.place)
    return total


def _difference(call: Call) -> Value:
    return combined(call, call.values(), (1, -1))


def _times(call: Call, value: Data, factor: Constant) -> Data:
    shape, place = broadcast((value, factor))
    full = _expanded(call, value, shape, place)
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
        factor = Constant(inverse.lo, inverse.hi, sum_of_sources(second), second.place)
        return _times(call, call.data(0), factor)
    if isinstance(first, Constant):
        return _times(call, activated(call, second, "reciprocal"), first)
    shape, place = broadcast((first, second))
    return call.step(Divide(), first, second, shape=shape, place=place)


def _power(call: Call) -> Value:
    value, exponent = call.data(0), call.number(1)
    if not math.isfinite(exponent):
        raise Unsupported("its exponent is not finite")
    shape, place = broadcast((value, call.value(1)))
    value = _expanded(call, value, shape, place)
    match exponent:
        case 1.0:
            return value
        case 0.5:
            return activated(call, value, "sqrt")
        case -1.0:
            return activated(call, value, "reciprocal")
        case _:
            return activated(call, value, "power", exponent)


def _extremum(call: Call) -> Value:
    """Max and Min: of the data, then with every constant."""
    shape, place = broadcast(call.values())
    smallest = call.node.op_type == "Min"
    total = call.data(next(i for i, v in enumerate(call.values()) if isinstance(v, Data)))
    for value in call.values():
        if isinstance(value, Data) and value != total:
            total = _larger(call, total, value, smallest=smallest)
    total = _expanded(call, total, shape, place)
    for value in call.values():
        if isinstance(value, Constant):
            total = _limited(call, total, value, smallest=smallest)
    return total


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


def _limited(call: Call, value: Data, limit: Constant, *, smallest: bool) -> Data:
    """max(x, c) = c + relu(x − c) and min(x, c) = c − relu(c − x)."""
    if limit.lo.size == 1 and limit.lo is limit.hi:
        number = float(limit.lo.reshape(-1)[0])
        limit.check_fixed()
        call.sink.untracked.update(limit.sources)
        return activated(
            call, value, "clip", *((-math.inf, number) if smallest else (number, math.inf))
        )
    sign = -1.0 if smallest else 1.0
    gap = scaled(call, combined(call, (value, limit), (1, -1)), sign)
    return combined(call, (scaled(call, activated(call, gap, "relu"), sign), limit), (1, 1))


def _choice(call: Call) -> Value:
    """Where with a constant condition m: m·a + (1 − m)·b, or x + (0 or −inf)."""
    mask, first, second = call.constant(0), call.value(1), call.value(2)
    mask.check_fixed()
    if mask.lo.dtype.kind != "b":
        raise Unsupported("the condition is no truth value")
    parts: list[Value] = []
    for flags, value in ((mask.lo, first), (~mask.lo, second)):
        weight = Constant(*2 * (flags.astype(np.float64),), {}, mask.place)
        if isinstance(value, Data):
            parts.append(_times(call, value, weight))
            continue
        value.check_fixed()
        if np.isneginf(value.hi).all():
            other = second if value is first else first
            hidden = np.where(flags, -np.inf, 0.0)
            call.sink.untracked.update(value.sources)
            if isinstance(other, Data):
                return combined(call, (other, Constant(hidden, hidden, {}, mask.place)), (1, 1))
        if not (np.isfinite(value.lo) & np.isfinite(value.hi)).all():
            raise Unsupported("a constant is not finite")
        _, place = broadcast((mask, value))
        low = np.where(flags, value.lo, 0.0)
        high = low if value.lo is value.hi else np.where(flags, value.hi, 0.0)
        parts.append(Constant(low, high, sum_of_sources(value), place))
    return combined(call, parts, (1, 1))


def concat(call: Call) -> Value:
    """Data one after another, with room for constants, which are then added."""
    values = call.values()
    rank = len(values[0].shape)
    axis = call.integer("axis", 1)
    if not -rank <= axis < rank or any(len(value.shape) != rank for value in values):
        raise Unsupported("the axis or the ranks do not fit")
    axis %= rank
    places = {value.place for value in values}
    others = {(*value.shape[:axis], *value.shape[axis + 1 :]) for value in values}
    if len(places) > 1 or len(others) > 1:
        raise Unsupported("its inputs carry the batch in different ways, or do not fit")
    (place,) = places
    if place is not None and place.axis == axis:
        raise Unsupported("it joins along the batch axis")
    data = [value for value in values if isinstance(value, Data)]
    total = data[0]
    if len(data) > 1:
        shape = (*total.shape[:axis], sum(v.shape[axis] for v in data), *total.shape[axis + 1 :])
        total = call.step(Concat(axis), *data, shape=shape, place=place)
    if len(data) == len(values):
        return total
    source = np.moveaxis(indices(total.shape), axis, 0)
    return _filled(call, total, values, axis, source)


def _filled(
    call: Call,
    total: Data,
    values: Sequence[Value],
    axis: int,
    source: IndexArray,
) -> Data:
    """Zeros between the data where constants stand; every constant, with zeros around, added."""
    length = sum(value.shape[axis] for value in values)
    whole = np.full((length, *source.shape[1:]), -1, dtype=np.int64)
    slabs: list[Constant] = []
    position = taken = 0
    for value in values:
        size = value.shape[axis]
        if isinstance(value, Data):
            whole[position : position + size] = source[taken : taken + size]
            taken += size
        else:
            slab = np.full(whole.shape, -1, dtype=np.int64)
            slab[position : position + size] = np.moveaxis(indices(value.shape), axis, 0)
            slabs.append(value.rearranged(np.moveaxis(slab, 0, axis), value.place))
        position += size
    result = call.moved(total, np.moveaxis(whole, 0, axis), total.place)
    return combined(call, [result, *slabs], (1,) * (1 + len(slabs)))


def _clip(call: Call) -> Value:
    if call.version < 11:
        low, high = call.real("min", -math.inf), call.real("max", math.inf)
    else:
        low = call.number(1) if call.has(1) else -math.inf
        high = call.number(2) if call.has(2) else math.inf
    if not low <= high:
        raise Unsupported("its limits are in the wrong order")
    return activated(call, call.data(), "clip", low, high)


def _prelu(call: Call) -> Value:
    value, slope = call.data(0), call.constant(1)
    shape, place = broadcast((value, slope))
    if shape != value.shape:
        raise Unsupported("its slopes enlarge the value")
    return call.step(PRelu(slope.operand(len(shape))), value, shape=shape, place=place)


def _function(name: str, **defaults: float) -> Callable[[Call], Value]:
    """A function whose parameters are attributes, in this order."""

    def rule(call: Call) -> Value:
        numbers = [call.real(key, default) for key, default in defaults.items()]
        return activated(call, call.data(), name, *numbers)

    return rule


def _gelu(call: Call) -> Value:
    kind = call.text("approximate", "none")
    if kind not in {"none", "tanh"}:
        raise Unsupported("its approximation is not known")
    return activated(call, call.data(), "gelu" if kind == "none" else "gelu_tanh")


def _swish(call: Call) -> Value:
    alpha = call.real("alpha", 1.0)
    value = call.data()
    return (
        activated(call, value, "silu")
        if alpha == 1.0
        else activated(call, value, "quick_gelu", alpha)
    )


def _negative(call: Call) -> Value:
    return scaled(call, call.data(), -1.0)


_PLAIN: Final = [
    "Abs", "Atan", "Cos", "Erf", "Exp", "Log", "Mish", "Reciprocal", "Relu", "Sigmoid", "Sin",
    "Softplus", "Softsign", "Sqrt", "Tanh",
]  # fmt: skip

ENTRY_OPS: Final[Mapping[str, Callable[[Call], Value]]] = {
    **{name: _function(name.lower()) for name in _PLAIN},
    "Add": _sum,
    "Celu": _function("celu", alpha=1.0),
    "Clip": _clip,
    "Concat": concat,
    "Div": _ratio,
    "Elu": _function("elu", alpha=1.0),
    "Gelu": _gelu,
    "HardSigmoid": _function("hard_sigmoid", alpha=0.2, beta=0.5),
    "HardSwish": _function("hard_swish"),
    "LeakyRelu": _function("leaky_relu", alpha=0.01),
    "Max": _extremum,
    "Mean": _sum,
    "Min": _extremum,
    "Mul": _product,
    "Neg": _negative,
    "PRelu": _prelu,
    "Pow": _power,
    "Selu": _function("selu", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Sub": _difference,
    "Sum": _sum,
    "Swish": _swish,
    "Where": _choice,
}
