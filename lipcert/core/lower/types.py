"""Types of real numbers: what becomes of a constant that takes another one.

What enters: a model, and enclosures of its constants. What leaves: enclosures that also hold the
rounded numbers. Invariant: a type that is not known never makes an enclosure narrower.
"""

from __future__ import annotations

import numpy as np

from lipcert.core.interval import Array, Interval
from lipcert.core.reader.records import Model, Tensor, with_nested

_HALVES = frozenset({"float16", "bfloat16"})
_HALF_CODES = frozenset({10, 16})


def has_halves(model: Model) -> bool:
    """Whether a tensor of the file, or one that its nodes compute, may be narrower than float32.

    Proof: the type of a result is that of an input, of a tensor in an attribute, or is named by an
    attribute `to` or `dtype` of its node.
    """
    types = {tensor.dtype for tensor in model.initializers.values()}
    types.update(item.dtype for item in model.inputs)
    codes = set()
    for node in with_nested(model.nodes):
        for name, attribute in node.attributes.items():
            if isinstance(attribute.value, Tensor):
                types.add(attribute.value.dtype)
            if name in {"to", "dtype"}:
                codes.add(attribute.value)
    return not codes.isdisjoint(_HALF_CODES) or not types.isdisjoint(_HALVES)


def is_held(array: Array, *, halves: bool) -> bool:
    """Whether float32 holds the numbers, and with `halves` float16 and bfloat16 do too.

    Proof: a bfloat16 number is a float32 number whose lower 16 bits are 0.
    """
    with np.errstate(over="ignore", under="ignore"):
        single = array.astype(np.float32)
        same = np.array_equal(single, array)
        if not halves:
            return same
        narrow = np.array_equal(array.astype(np.float16), array)
    return same and narrow and not (single.view(np.uint32) & 0xFFFF).any()


def or_rounded(known: Interval) -> Interval:
    """The real numbers, and those that float32 or float64 arithmetic has in their place.

    Proof: rounding to nearest is monotone, so a number in [lo, hi] is rounded to one between what
    the ends are rounded to; float64 holds the ends, and moves no number across them.
    """
    with np.errstate(over="ignore", under="ignore"):
        low, high = (ends.astype(np.float32).astype(np.float64) for ends in (known.lo, known.hi))
    return Interval(np.minimum(known.lo, low), np.maximum(known.hi, high))
