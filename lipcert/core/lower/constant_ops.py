"""Computations on constants: real numbers in intervals, sizes as `size_ops` says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Interval
from lipcert.core.interval import down as below
from lipcert.core.interval import up as above
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.layout_ops import normal_axes
from lipcert.core.lower.size_ops import equal, filled, marks, numbers_from, whole, within
from lipcert.core.lower.types import is_held, or_rounded
from lipcert.core.lower.values import (
    FIXED,
    Constant,
    Data,
    Value,
    broadcast,
    check_size,
    indices,
)
from lipcert.core.reader.records import Tensor

Array = npt.NDArray[Any]
_EXACT: Final = 1 << 24
"""up to here float32 holds the whole numbers"""


def literal(tensor: Tensor, name: str) -> Constant:
    """A tensor of the file."""
    values = tensor.values()
    return Constant(values, values, {name: 1.0} if values.dtype.kind == "f" else {})


def _plain(array: Array, grows: Array | None = None) -> Constant:
    return Constant(array, array, grows=grows)


def sum_of_sources(*constants: Constant) -> dict[str, float]:
    """All sources, of which the result is not known to be a linear function."""
    return {name: math.inf for item in constants for name in item.sources}


def _interval(constant: Constant) -> Interval:
    constant.check_fixed()
    if not constant.is_float:
        raise Unsupported("constants of different types are combined")
    return Interval(constant.lo, constant.hi)


def _is_finite(known: Interval) -> bool:
    return bool(np.isfinite(known.lo).all() and np.isfinite(known.hi).all())


# real numbers ---------------------------------------------------------------------------------


def quotient(constant: Constant) -> Interval:
    """1/c, exactly where c is a power of two."""
    known = _interval(constant)
    if (known.lo <= 0.0).any() and (known.hi >= 0.0).any() and _may_vanish(known):
        raise Unsupported("a divisor may be 0")
    mantissa, _ = np.frexp(known.lo)
    with np.errstate(over="ignore", under="ignore"):
        inverse = known.reciprocal()
        exact = 1.0 / known.lo
    is_power = (known.lo == known.hi) & (np.abs(mantissa) == 0.5) & np.isfinite(exact)
    is_power &= np.abs(exact) >= np.finfo(np.float64).tiny
    low, high = np.where(is_power, exact, inverse.lo), np.where(is_power, exact, inverse.hi)
    return Interval(low, low if is_power.all() else high)


def _may_vanish(known: Interval) -> bool:
    return bool(((known.lo <= 0.0) & (known.hi >= 0.0)).any())


def _arithmetic(call: Call) -> Value:
    """Add, Sub, Mul, Div of two constants."""
    first, second = call.constant(0), call.constant(1)
    operation = call.node.op_type
    if not first.is_float:
        return whole(operation, first, second)
    shape, place = broadcast((first, second))
    if operation == "Add":
        for source, other in ((first, second), (second, first)):
            if not other.sources and not (other.lo.any() or other.hi.any()):
                return source.rearranged(np.broadcast_to(indices(source.shape), shape), place)
    left, right = _interval(first), _interval(second)
    if operation in {"Mul", "Div"} and not (_is_finite(left) and _is_finite(right)):
        raise Unsupported("a constant is not finite")  # 0·∞ is not a number
    match operation:
        case "Add":
            result = left + right
        case "Sub":
            result = left - right
        case "Mul":
            result = left * right
        case _:
            result = left * quotient(second)
    return Constant(result.lo, result.hi, _gains(call, first, second), place)


def _gains(call: Call, first: Constant, second: Constant) -> Mapping[str, float]:
    """A product of a source and plain numbers is linear: its gain is the largest of them.

    Proof: ‖c·w‖ ≤ max|c|·‖w‖ where w is not repeated, that is, where it has the larger shape.
    """
    is_alone = call.node.op_type == "Mul" and bool(first.sources) != bool(second.sources)
    source, other = (first, second) if first.sources else (second, first)
    is_large = np.broadcast_shapes(source.shape, other.shape) == source.shape
    if not (is_alone and is_large):
        return sum_of_sources(first, second)
    largest = float(_interval(other).magnitude().max(initial=0.0))
    return {name: multiply_up(gain, largest) for name, gain in source.sources.items()}


def _negative(call: Call) -> Value:
    constant = call.constant(0)
    constant.check_fixed()
    low = -constant.hi
    high = low if constant.lo is constant.hi else -constant.lo
    return Constant(low, high, constant.sources, constant.place)


def _root(call: Call) -> Value:
    """√c, and what float32 arithmetic has in its place: a width's root is rarely a number of it."""
    constant = call.constant(0)
    known = _interval(constant)
    if (known.lo < 0.0).any():
        raise Unsupported("a root of a negative number")
    low, high = np.maximum(below(np.sqrt(known.lo)), 0.0), above(np.sqrt(known.hi))
    found = or_rounded(Interval(low, high))
    return Constant(found.lo, found.hi, sum_of_sources(constant), constant.place)


def _cast(call: Call) -> Value:
    """Another type: of whole numbers that it holds, and of real numbers rounded as it rounds."""
    constant = call.constant(0)
    kind = {1: "f4", 6: "i4", 7: "i8", 9: "b1", 10: "f2", 11: "f8", 2: "u1"}.get(
        call.integer("to", 0)
    )
    call.integer("saturate", 1), call.text("round_mode", "up")
    if kind is None:
        raise Unsupported("the type is not supported")
    if kind[0] != "f":
        call.sink.untracked.update(constant.sources)
        whole = constant.lo.astype(np.int64)
        if constant.lo is not constant.hi or not np.array_equal(whole, constant.lo):
            raise Unsupported("a number that is not whole becomes one")
        if kind == "b1":
            constant.check_fixed()
            flags = whole != 0
            return Constant(flags, flags, {}, constant.place)
        cast = within(whole.astype(object), np.dtype(kind))
        return Constant(cast, cast, {}, constant.place, constant.grows)
    low = constant.lo.astype(kind).astype(np.float64)
    high = low if constant.lo is constant.hi else constant.hi.astype(kind).astype(np.float64)
    same = np.array_equal(low, constant.lo) and np.array_equal(high, constant.hi)
    sources = constant.sources if same else sum_of_sources(constant)
    if not constant.is_float and not same and constant.grows is not None:
        constant.check_fixed()
    return Constant(low, high, sources, constant.place, constant.grows)


def cast_like(call: Call) -> Value:
    """The type of another tensor, one of real numbers; a constant exactly, or with its rounding.

    Proof: all types are float32 or float64, and `or_rounded` holds the number of either; whole
    numbers up to 2²⁴ are such numbers themselves. Where the file has narrower types, only numbers
    that all types hold are taken.
    """
    call.integer("saturate", 1), call.text("round_mode", "up")
    value, like = call.value(0), call.value(1)
    if isinstance(like, Constant) and not like.is_float:
        raise Unsupported("it converts to whole numbers")
    if isinstance(value, Data):
        return value
    value.check_fixed()
    halves = call.sink.halves
    if not value.is_float:
        real = value.lo.astype(np.float64)
        if value.lo is not value.hi or (np.abs(real) > _EXACT).any():
            raise Unsupported("it may round a whole number")
        value = Constant(real, real, {}, value.place)
    if is_held(value.lo, halves=halves) and is_held(value.hi, halves=halves):
        return value
    if halves:
        raise Unsupported("it may round a constant to a half-precision number")
    found = or_rounded(Interval(value.lo, value.hi))
    return Constant(found.lo, found.hi, sum_of_sources(value), value.place)


# other ----------------------------------------------------------------------------------------


def _constant(call: Call) -> Value:
    """The number, numbers or tensor in the node."""
    name = call.node.outputs[0]
    found: Array
    if call.given("value"):
        tensor = call.tensor("value")
        if tensor is None:
            raise Unsupported("it is used in a way that is not understood")
        return literal(tensor, name)
    if call.given("value_float") or call.given("value_floats"):
        one = call.given("value_float")
        numbers = call.real("value_float", 0.0) if one else call.reals("value_floats")
        found = np.asarray(numbers, dtype=np.float64)
        return Constant(found, found, {name: 1.0})
    one = call.given("value_int")
    if not one and not call.given("value_ints"):
        raise Unsupported("the kind of its value is not supported")
    whole = call.integer("value_int", 0) if one else call.integers("value_ints")
    return _plain(np.asarray(whole, dtype=np.int64))


def _where(call: Call) -> Value:
    """One constant or the other, entry by entry."""
    condition, first, second = (call.constant(place) for place in range(3))
    condition.check_fixed()
    if condition.lo.dtype.kind != "b" or first.lo.dtype.kind != second.lo.dtype.kind:
        raise Unsupported("constants of different types are combined")
    _, place = broadcast((condition, first, second))
    low = np.where(condition.lo, first.lo, second.lo)
    exact = first.lo is first.hi and second.lo is second.hi
    high = low if exact else np.where(condition.lo, first.hi, second.hi)
    grows = np.where(condition.lo, marks(first), marks(second))
    return Constant(low, high, sum_of_sources(first, second), place, grows)


def _concat(call: Call) -> Value:
    """One after another along an axis that is not the batch's."""
    parts = [call.constant(place) for place in range(len(call))]
    (axis,) = normal_axes([call.integer("axis", 0)], len(parts[0].shape))
    places = {part.place for part in parts}
    if len(places) > 1 or any(item is not None and item.axis == axis for item in places):
        raise Unsupported(FIXED)
    check_size((sum(math.prod(part.shape) for part in parts),))
    low = np.concatenate([part.lo for part in parts], axis)
    exact = all(part.lo is part.hi for part in parts)
    high = low if exact else np.concatenate([part.hi for part in parts], axis)
    grows = np.concatenate([marks(part) for part in parts], axis)
    sources = parts[0].sources if len(parts) == 1 else sum_of_sources(*parts)
    return Constant(low, high, sources, parts[0].place, grows)


CONSTANT_OPS: Final[Mapping[str, Callable[[Call], Value]]] = {
    **dict.fromkeys(["Add", "Sub", "Mul", "Div"], _arithmetic),
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": filled,
    "Equal": equal,
    "Neg": _negative,
    "Range": numbers_from,
    "Sqrt": _root,
    "Where": _where,
}
