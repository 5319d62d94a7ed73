"""Where: entries of one value or of another."""

from __future__ import annotations

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.entry_ops import times
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.moves import broadcast
from lipcert.core.lower.reals import sum_of_sources
from lipcert.core.lower.sums import combined
from lipcert.core.lower.values import Constant, Data, Value


def choice(call: Call) -> Value:
    """Where; with a constant condition m: m·a + (1 − m)·b, or x + (0 or −inf)."""
    if isinstance(call.value(0), Data):
        from lipcert.core.lower.truth import chosen  # noqa: PLC0415  for such masks only

        return chosen(call)
    mask, first, second = call.constant(0), call.value(1), call.value(2)
    mask.check_fixed()
    if mask.lo.dtype.kind != "b":
        raise Unsupported("the condition is not a truth value")
    parts: list[Value] = []
    for flags, value in ((mask.lo, first), (~mask.lo, second)):
        weight = Constant(*2 * (flags.astype(np.float64),), {}, mask.place)
        if isinstance(value, Data):
            parts.append(times(call, value, weight))
            continue
        value.check_fixed()
        if np.isneginf(value.hi).all():
            other = second if value is first else first
            call.sink.untracked.update(value.sources)
            if isinstance(other, Data):
                shape, place = broadcast((mask, value))
                hidden = np.broadcast_to(np.where(flags, -np.inf, 0.0), shape)
                return combined(call, (other, Constant(hidden, hidden, {}, place)), (1, 1))
        if not (np.isfinite(value.lo) & np.isfinite(value.hi)).all():
            raise Unsupported("a constant is not finite")
        _, place = broadcast((mask, value))
        low = np.where(flags, value.lo, 0.0)
        high = low if value.lo is value.hi else np.where(flags, value.hi, 0.0)
        parts.append(Constant(low, high, sum_of_sources(value), place))
    return combined(call, parts, (1, 1))
