"""Lower functions of every entry that attributes or inputs choose from several."""

import math
from dataclasses import replace

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.functions import applied
from lipcert.core.lower.values import Constant, Data, Value


def limited(call: Call, value: Data, number: float, *, smallest: bool) -> Value:
    """max(x, c) or min(x, c) with one number c."""
    return _clipped(call, value, *(-math.inf, number) if smallest else (number, math.inf))


def _clipped(call: Call, value: Value, low: float, high: float) -> Value:
    """min(max(x, low), high); refuse limits with no real number between them."""
    if not low <= high or low == math.inf or high == -math.inf:
        raise Unsupported("its limits are in the wrong order, or leave no number")
    if isinstance(value, Constant) and value.lo.dtype.kind in "iu":
        value.check_fixed()
        ends = (int(low) if low > -math.inf else None, int(high) if high < math.inf else None)
        held = np.clip(value.lo, *ends)
        return replace(value, lo=held, hi=held)
    return applied(call, value, "clip", low, high)


def clip(call: Call) -> Value:
    """min(max(x, low), high), with limits that are attributes or, later, inputs."""
    if call.version < 11:
        low, high = call.real("min", -math.inf), call.real("max", math.inf)
    else:
        low = call.number(1) if call.has(1) else -math.inf
        high = call.number(2) if call.has(2) else math.inf
    return _clipped(call, call.value(0), low, high)


def swish(call: Call) -> Value:
    """x·sigmoid(alpha·x), which is "silu" for alpha = 1."""
    value, alpha = call.value(0), call.real("alpha", 1.0)
    if alpha == 1.0:
        return applied(call, value, "silu")
    return applied(call, value, "quick_gelu", alpha)


def shrink(call: Call) -> Value:
    """x minus the nearest number in [−t, t], if both attributes are t; otherwise it jumps."""
    limit, bias = call.real("lambd", 0.5), call.real("bias", 0.0)
    if limit != bias or limit < 0.0:
        raise Unsupported("it jumps at lambd unless bias equals lambd; write it with Relu")
    return applied(call, call.value(0), "soft_threshold", limit)
