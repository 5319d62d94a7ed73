"""Powers of data by a constant, and of a constant by data."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import round_down, round_up
from lipcert.core.exponential import log_bounds
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.functions import activated
from lipcert.core.lower.moves import broadcast
from lipcert.core.lower.sums import expanded
from lipcert.core.lower.values import Constant, Value
from lipcert.core.program import Operand, Scale


def power(call: Call) -> Value:
    """x^c, or c^x = e^(x·ln c) with one number c."""
    if isinstance(call.value(0), Constant):
        return _exponential(call)
    value, exponent = call.data(0), call.constant(1).uniform()
    if exponent is None or not math.isfinite(exponent):
        raise Unsupported("its exponent is not one exact finite number")
    call.sink.untracked.update(call.constant(1).sources)
    shape, place = broadcast((value, call.value(1)))
    value = expanded(call, value, shape, place)
    match exponent:
        case 1.0:
            return value
        case 0.5:
            return activated(call, value, "sqrt")
        case -1.0:
            return activated(call, value, "reciprocal")
        case _:
            return activated(call, value, "power", exponent)


def _exponential(call: Call) -> Value:
    base, exponent = call.constant(0), call.data(1)
    number = base.uniform()
    if number is None or not 0.0 < number < math.inf:
        raise Unsupported("its base is not one exact positive number")
    call.sink.untracked.update(base.sources)
    shape, place = broadcast((base, exponent))
    low, high = log_bounds(Fraction(number))
    ends = (np.full((1,) * len(shape), end) for end in (round_down(low), round_up(high)))
    factor = Operand(next(ends), next(ends))
    value = expanded(call, exponent, shape, place)
    value = call.step(Scale(factor), value, shape=shape, place=place)
    return activated(call, value, "exp")
