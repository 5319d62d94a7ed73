"""Tell which numbers the types of a file hold, and lower CastLike, which does not name its type."""

from typing import Final

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.lower.call import Call, Sink
from lipcert.core.lower.constant_node import sum_of_sources
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Array, Constant, Data, Value
from lipcert.core.reader.records import Model, Tensor, with_nested

EXACT: Final = 1 << 24
"""Up to this number, float32 represents all whole numbers."""
_HALVES: Final = frozenset({"float16", "bfloat16"})
_HALF_CODES: Final = frozenset({10, 16})


def has_halves(model: Model) -> bool:
    """Whether a tensor of the file, or one that its nodes compute, may be narrower than float32.

    Proof: the type of a result is that of an input, of a tensor in an attribute, or is named by an
    attribute `to` or `dtype` of its node.
    """
    given = [item for node in with_nested(model.nodes) for item in node.attributes.items()]
    types = {item.value.dtype for _, item in given if isinstance(item.value, Tensor)}
    types |= {tensor.dtype for tensor in model.initializers.values()}
    types |= {item.dtype for item in model.inputs}
    codes = {item.value for name, item in given if name in {"to", "dtype", "output_dtype"}}
    return not codes.isdisjoint(_HALF_CODES) or not types.isdisjoint(_HALVES)


def halves_in(sink: Sink) -> bool:
    """Whether the file that is read `has_halves`, which is found once."""
    if sink.halves is None:
        sink.halves = has_halves(sink.model)
    return sink.halves


def is_held(array: Array, *, halves: bool) -> bool:
    """Whether float32, and with `halves` also float16 and bfloat16, represents the numbers.

    Proof: a bfloat16 number is a float32 number whose lower 16 bits are 0.
    """
    with np.errstate(over="ignore", under="ignore"):
        single = array.astype(np.float32)
        same = np.array_equal(single, array)
        if not halves:
            return same
        narrow = np.array_equal(array.astype(np.float16), array)
    return same and narrow and not (single.view(np.uint32) & 0xFFFF).any()


def as_held(sink: Sink, known: Interval) -> Interval:
    """Return the same numbers, marked as inexact if a narrower type of the file may round them."""
    is_exact = not halves_in(sink) or is_held(known.lo, halves=True)
    return known if is_exact else Interval(known.lo, known.hi.view())


def or_rounded(known: Interval) -> Interval:
    """Enclose the real numbers, and those that float32 or float64 arithmetic has instead.

    Proof: rounding to nearest is monotone, so a number in [lo, hi] is rounded to one between what
    the ends are rounded to; float64 holds the ends, and moves no number across them.
    """
    with np.errstate(over="ignore", under="ignore"):
        low, high = (ends.astype(np.float32).astype(np.float64) for ends in (known.lo, known.hi))
    return Interval(np.minimum(known.lo, low), np.maximum(known.hi, high))


def cast_like(call: Call) -> Value:
    """Lower CastLike; to a real type, constants are kept exactly, or enclosed with rounding.

    Proof: all types are float32 or float64, and `or_rounded` holds the number of either; whole
    numbers up to 2²⁴ are such numbers themselves. Where the file has narrower types, only numbers
    that all types hold are taken.
    """
    call.integer("saturate", 1), call.text("round_mode", "up")
    value, like = call.value(0), call.value(1)
    dtype = None
    if any(isinstance(item, Data) and not item.is_real for item in (value, like)):
        from lipcert.core.lower.truth import as_other_type  # noqa: PLC0415  for such values only

        value, dtype = as_other_type(call, value, like), np.dtype(np.int64)
    elif isinstance(like, Constant) and not like.is_float:
        if isinstance(value, Data):
            raise Unsupported("it rounds to whole numbers")
        dtype = like.lo.dtype
    if isinstance(value, Data):
        return value
    if dtype is not None:
        from lipcert.core.lower.exact_constants import as_whole  # noqa: PLC0415  for such alone

        return as_whole(call, value, dtype)
    value.check_fixed()
    halves = halves_in(call.sink)
    if not value.is_float:
        real = value.lo.astype(np.float64)
        if value.lo is not value.hi or (np.abs(real) > EXACT).any():
            raise Unsupported("it may round a whole number")
        value = Constant.of(real, value.place)
    if is_held(value.lo, halves=halves) and is_held(value.hi, halves=halves):
        return value
    if halves:
        raise Unsupported("it may round a constant to a half-precision number")
    from lipcert.core.lower.slopes import chained  # noqa: PLC0415  for such alone

    found = or_rounded(Interval(value.lo, value.hi))
    slopes = chained((value, 1.0))
    return Constant(found.lo, found.hi, sum_of_sources(value), value.place, slopes=slopes)
