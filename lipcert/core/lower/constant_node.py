"""Read the constants that nodes hold, and list the tensors behind several constants."""

import math

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Constant, Value, literal


def constant(call: Call) -> Value:
    """Lower Constant: return the number, numbers or tensor in the node."""
    name = call.node.outputs[0]
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
    return Constant.of(np.asarray(whole, dtype=np.int64))


def sum_of_sources(*constants: Constant) -> dict[str, float]:
    """Return all sources, for a result that is not known to be linear in them."""
    return {name: math.inf for item in constants for name in item.sources}
