"""Arithmetic of whole numbers, exactly, and of multiples c·N of the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import add, floordiv, mul, sub
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.moves import broadcast
from lipcert.core.lower.values import SAME, TIMES, UNKNOWN, VARIES, Constant

Array = npt.NDArray[Any]


_MOST: Final = 1 << 22
"""whole numbers that are computed with at once"""
_LARGEST_BATCH: Final = 1 << 20
"""examples; c·N of no larger batch is one of the numbers of its type"""
ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {"Add": add, "Mul": mul, "Sub": sub}


def within(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Python integers as numbers of this type, which must hold them."""
    bounds = np.iinfo(dtype)
    if any(not bounds.min <= item <= bounds.max for item in numbers.reshape(-1)):
        raise Unsupported("a whole number is too large")
    return numbers.astype(dtype)


def held_for_all(constant: Constant, dtype: np.dtype[Any]) -> Array | None:
    """How the entries depend on the batch as numbers of this type: unknown where some N wraps or
    rounds c·N or c + p·i, as float16 rounds 2049 and uint8 makes 1 of 257."""
    varies = constant.varies
    if varies is None or not varies.any() or dtype == np.float64:
        return varies
    if dtype.kind == "f":
        return np.where(varies == SAME, varies, UNKNOWN)
    largest = np.where(varies == TIMES, np.abs(constant.lo.astype(np.float64)), varies)
    fits = (largest * _LARGEST_BATCH < float(np.iinfo(dtype).max)) | (varies == SAME)
    return np.where(fits, varies, UNKNOWN)


def whole(operation: str, first: Constant, second: Constant) -> Constant:
    """Arithmetic of integers: c·N times or over a fixed whole number, and (c·N)/(d·N).

    Of numbers c + p·i of examples i: their sums with, and multiples by, fixed whole numbers.
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
    found = Constant(held, held, {}, place, np.broadcast_to(varies, shape))
    return replace(found, varies=held_for_all(found, first.lo.dtype))


def _growing(operation: str, first: Constant, second: Constant, divides: Array) -> Array:
    """Which entries are multiples of N. divides: where a quotient has no remainder."""
    left, right = first.grown(), second.grown()
    both, either = left & right, left | right
    allowed, grows = ~both if operation == "Mul" else ~either, either
    if operation == "Div":
        allowed, grows = ~either | (left & divides), left & ~right
    if not np.asarray(allowed, dtype=bool).all():
        raise Unsupported(VARIES)
    return np.where(grows, np.int64(TIMES), np.int64(SAME))


def _counting(operation: str, first: Constant, second: Constant) -> Array:
    """What is multiplied by the number of the example in (c + p·i) ± d, and in d·(c + p·i)."""
    for own, other in ((first, second), (second, first)):
        varies = own.marks
        if other.marks.any() or (varies < 0).any():
            continue
        if operation == "Add" or (operation == "Sub" and own is first):
            return varies
        if operation == "Mul" and (other.lo > 0).all():
            return within(np.asarray(varies.astype(object) * other.lo), np.dtype(np.int64))
    raise Unsupported(VARIES)
