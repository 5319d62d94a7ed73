"""Read constants in nodes, and constants as intervals of reals."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lipcert.core.interval import Interval
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Constant, Value, literal


def constant(call: Call) -> Value:
    """Lower Constant: return the number, numbers or tensor in the node."""
    name = call.node.outputs[0]
    found: npt.NDArray[Any]
    if call.given("value"):
        tensor = call.tensor("value")
        if tensor is None:
            raise Unsupported("it is used in a way that is not understood")
        return literal(tensor, name)
    if call.given("value_float") or call.given("value_floats"):
        one = call.given("value_float")
        numbers = call.real("value_float", 0.0, finite=False) if one else call.reals("value_floats")
        found = np.asarray(numbers, dtype=np.float64)
        return Constant(found, found, {name: 1.0}, acts=())
    one = call.given("value_int")
    if not one and not call.given("value_ints"):
        raise Unsupported("the kind of its value is not supported")
    whole = call.integer("value_int", 0) if one else call.integers("value_ints")
    array = np.asarray(whole, dtype=np.int64)
    return Constant(array, array)


def sum_of_sources(*constants: Constant) -> dict[str, float]:
    """Return all sources, for a result that is not known to be linear in them."""
    return {name: math.inf for item in constants for name in item.sources}


def interval(constant: Constant) -> Interval:
    """Return the interval of the entries; refuse constants that are not real."""
    constant.check_fixed()
    if not constant.is_float:
        raise Unsupported("constants of different types are combined")
    return Interval(constant.lo, constant.hi)


def quotient(constant: Constant) -> Interval:
    """Enclose 1/c; it is exact if c is a power of two."""
    known = interval(constant)
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
