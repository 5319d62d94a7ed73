"""Compute with exact constants: whole numbers, multiples c·N of the batch size, casts and jumps.

A function that jumps must have the same value for a number and its float32.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce
from operator import add, floordiv, mul, sub
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.lower.call import Call
from lipcert.core.lower.casts import is_held
from lipcert.core.lower.constant_node import sum_of_sources
from lipcert.core.lower.entrywise import broadcast
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import SAME, TIMES, UNKNOWN, VARIES, Constant, Value
from lipcert.core.reader.tensors import DTYPES

Array = npt.NDArray[Any]
_READINGS: Final = "it jumps between a number and its float32, so it has two readings"
_MOST: Final = 1 << 22
"""Largest number of whole numbers in one computation."""
_LARGEST_BATCH: Final = 1 << 20
"""Largest batch size N for which c·N has to fit its type."""
ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {"Add": add, "Mul": mul, "Sub": sub}


def within(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Convert Python integers to this type; refuse those that do not fit."""
    bounds = np.iinfo(dtype)
    if any(not bounds.min <= item <= bounds.max for item in numbers.reshape(-1)):
        raise Unsupported("a whole number is too large")
    return numbers.astype(dtype)


def held_for_all(constant: Constant, dtype: np.dtype[Any]) -> Array | None:
    """Return how the entries, as numbers of this type, depend on the batch.

    It is unknown where c·N or c + p·i wraps around or is rounded for some N, as float16 rounds 2049
    and uint8 turns 257 into 1.
    """
    varies = constant.varies
    if varies is None or not varies.any() or dtype == np.float64:
        return varies
    if dtype.kind == "f":
        return np.where(varies == SAME, varies, UNKNOWN)
    largest = np.where(varies == TIMES, np.abs(constant.lo.astype(np.float64)), varies)
    fits = (largest * _LARGEST_BATCH < float(np.iinfo(dtype).max)) | (varies == SAME)
    return np.where(fits, varies, UNKNOWN)


def arithmetic(call: Call) -> Value:
    """Lower Add, Sub, Mul, Div of two constants, and Sum of any number of them."""
    operation, found = call.node.op_type, [call.constant(place) for place in range(len(call))]
    if any(item.is_float for item in found):
        from lipcert.core.lower.constant_ops import real_arithmetic  # noqa: PLC0415  for such alone

        return real_arithmetic(call, found)
    return reduce(partial(_whole, "Add" if operation == "Sum" else operation), found)


def _whole(operation: str, first: Constant, second: Constant) -> Constant:
    """Compute with integers: c·N times or divided by a fixed whole number, and (c·N)/(d·N).

    For numbers c + p·i of examples i: their sums with, and multiples by, fixed whole numbers.
    """
    if first.lo.dtype != second.lo.dtype or first.lo.dtype.kind not in "iu":
        raise Unsupported("constants of different types are combined")
    shape, place = broadcast((first, second))
    if math.prod(shape) > _MOST:
        raise Unsupported(f"it computes with more than {_MOST} whole numbers")
    a, b = (np.broadcast_to(item.lo, shape).astype(object) for item in (first, second))
    if operation == "Div" and ((b <= 0).any() or (a < 0).any()):
        raise Unsupported("a quotient of numbers that are not positive")
    numbers = np.asarray(ARITHMETIC.get(operation, floordiv)(a, b))
    if any((item.marks > 0).any() for item in (first, second)):
        varies = _counting(operation, first, second)
    else:
        divides = np.asarray(operation == "Div" and numbers * b == a, dtype=bool)
        varies = _growing(operation, first, second, divides)
    held = within(numbers, first.lo.dtype)
    found = Constant.of(held, place, np.broadcast_to(varies, shape))
    return replace(found, varies=held_for_all(found, first.lo.dtype))


def _growing(operation: str, first: Constant, second: Constant, divides: Array) -> Array:
    """Return which entries are multiples of N. divides: where a quotient has no remainder."""
    left, right = first.grown(), second.grown()
    both, either = left & right, left | right
    allowed, grows = ~both if operation == "Mul" else ~either, either
    if operation == "Div":
        allowed, grows = ~either | (left & divides), left & ~right
    if not np.asarray(allowed, dtype=bool).all():
        raise Unsupported(VARIES)
    return np.where(grows, np.int64(TIMES), np.int64(SAME))


def _counting(operation: str, first: Constant, second: Constant) -> Array:
    """Return the factor of the example's number i in (c + p·i) ± d, and in d·(c + p·i)."""
    for own, other in ((first, second), (second, first)):
        varies = own.marks
        if other.marks.any() or (varies < 0).any():
            continue
        if operation == "Add" or (operation == "Sub" and own is first):
            return varies
        if operation == "Mul" and (other.lo > 0).all():
            return within(np.asarray(varies.astype(object) * other.lo), np.dtype(np.int64))
    raise Unsupported(VARIES)


def cast(call: Call) -> Value:
    """Lower Cast: whole numbers must fit the new type; real numbers are rounded to it."""
    constant = call.constant(0)
    kind = DTYPES.get(call.integer("to", 0), "bfloat16")
    call.integer("saturate", 1), call.text("round_mode", "up")
    if kind == "bfloat16":
        raise Unsupported("the type is not supported")
    if kind[0] != "f":
        return as_whole(call, constant, np.dtype(kind))
    varies = held_for_all(constant, np.dtype(kind))
    low = constant.lo.astype(kind).astype(np.float64)
    high = low if constant.lo is constant.hi else constant.hi.astype(kind).astype(np.float64)
    same = np.array_equal(low, constant.lo) and np.array_equal(high, constant.hi)
    sources, acts, slopes = constant.sources, constant.acts, constant.slopes
    if not same:
        from lipcert.core.lower.slopes import chained  # noqa: PLC0415  for such alone

        sources, acts, slopes = sum_of_sources(constant), None, chained((constant, 1.0))
    if not constant.is_float and not same and constant.varies is not None:
        constant.check_fixed()
    return Constant(low, high, sources, constant.place, varies, acts, slopes=slopes)


def as_whole(call: Call, constant: Constant, dtype: np.dtype[Any]) -> Constant:
    """Convert whole numbers to another type that holds them, or to whether they are not 0."""
    call.sink.untracked.update(constant.sources)
    if constant.lo is not constant.hi or not np.array_equal(np.trunc(constant.lo), constant.lo):
        raise Unsupported("a number that is not whole becomes one")
    if constant.is_float and not is_held(constant.lo, halves=False):
        raise Unsupported("a whole number is none of float32, so it has two readings")
    if dtype.kind == "b":
        constant.check_fixed()
        return Constant.of(constant.lo != 0, constant.place)
    cast = within(np.asarray(constant.lo).astype(object), dtype)
    return Constant.of(cast, constant.place, held_for_all(constant, dtype))


def equal(call: Call) -> Value:
    """Lower Equal of exact numbers; c·N for c > 0 is not equal to a number below 1."""
    first, second = call.constant(0), call.constant(1)
    shape, place = broadcast((first, second))
    left, right = (np.broadcast_to(item.grown(), shape) for item in (first, second))
    a, b = np.broadcast_to(first.lo, shape), np.broadcast_to(second.lo, shape)
    known = ~(left | right)
    known |= (left & ~right & (a > 0) & (b <= 0)) | (right & ~left & (b > 0) & (a <= 0))
    if first.lo is not first.hi or second.lo is not second.hi or not known.all():
        raise Unsupported("it compares with the size of the batch, or numbers that are not exact")
    call.sink.untracked.update([*first.sources, *second.sources])
    flags = np.asarray((a == b) & ~(left | right))
    if not np.array_equal(flags, (_rounded(a) == _rounded(b)) & ~(left | right)):
        raise Unsupported(_READINGS)
    return Constant.of(flags, place)


def exactly(call: Call, function: Callable[..., Any]) -> Value:
    """Apply a function that may jump to exact numbers; it must be the same for their float32."""
    constants = [call.constant(place) for place in range(len(call))]
    _, place = broadcast(constants)
    for item in constants:
        item.check_fixed()
        if item.lo is not item.hi:
            raise Unsupported("it jumps, and a number before it is not exact")
    found = np.asarray(function(*(item.lo for item in constants)))
    rounded = function(*(_rounded(item.lo) for item in constants))
    if not np.array_equal(found, rounded):
        raise Unsupported(_READINGS)
    if found.dtype.kind == "b":  # what reads it, says what becomes of its sources
        return Constant(found, found, sum_of_sources(*constants), place)
    call.sink.untracked.update(sum_of_sources(*constants))
    return Constant.of(found, place)


def _rounded(array: Array) -> Array:
    return array.astype(np.float32).astype(np.float64) if array.dtype.kind == "f" else array


def modulo(call: Call) -> Value:
    """Lower Mod: the remainder with the sign of the divisor, or of the dividend for fmod."""
    function = np.fmod if call.integer("fmod", 0) else np.mod
    if not call.constant(1).lo.all():
        raise Unsupported("a divisor is 0")
    return exactly(call, function)


_JUMPS: Final[Mapping[str, Callable[..., Any]]] = {
    "And": np.logical_and,
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "IsInf": np.isinf,
    "IsNaN": np.isnan,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Round": np.round,
    "Sign": np.sign,
    "Xor": np.logical_xor,
}


def jump(call: Call) -> Value:
    """Lower a function that jumps, of constants.

    Of a number that is rounded once, such as 16/3, it is known if it is the same at both ends of
    what holds the number and its float32. Proof: rounding and these functions of one number keep
    the order.
    """
    function, known = _JUMPS[call.node.op_type], call.constant(0)
    if len(call) > 1 or not known.once:
        return exactly(call, function)
    known.check_fixed()
    low = function(np.minimum(known.lo, _rounded(known.lo)))
    if not np.array_equal(low, function(np.maximum(known.hi, _rounded(known.hi)))):
        raise Unsupported(_READINGS)
    call.sink.untracked.update(known.sources)
    return Constant(low, low, {}, known.place)
