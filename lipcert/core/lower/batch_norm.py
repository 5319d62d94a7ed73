"""Lower batch normalization with its running statistics."""

import numpy as np

from lipcert.core.interval import Interval, exact
from lipcert.core.interval import down as below
from lipcert.core.interval import up as above
from lipcert.core.lower.call import Call
from lipcert.core.lower.conv_ops import images
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Constant, Value
from lipcert.core.program import BatchNorm


def batch_norm(call: Call) -> Value:
    """Lower a batch normalization with its running statistics."""
    value = images(call)
    epsilon = call.real("epsilon", 1e-5)
    call.real("momentum", 0.9)
    extra = [name for name in call.node.outputs[1:] if name]
    if call.integer("training_mode", 0) or extra:
        raise Unsupported("a batch normalization in training mode")
    if call.integer("spatial", 1) != 1:
        raise Unsupported("a batch normalization of every position")
    operands = [call.constant(place).operand(1) for place in range(1, 5)]
    if any(operand.shape != (value.shape[1],) for operand in operands):
        raise Unsupported("a parameter does not fit the channels")
    scale, shift, mean, variance = operands
    total = Interval(variance.lo, variance.hi) + exact(np.full(value.shape[1], epsilon))
    if not (total.lo > 0.0).all():
        raise Unsupported("a variance is not positive")
    root = Interval(below(np.sqrt(total.lo)), above(np.sqrt(total.hi)))
    inverse = root.reciprocal()
    made = Constant(inverse.lo, inverse.hi, dict.fromkeys(variance.sources, np.inf))
    if variance.sources:
        from lipcert.core.lower.slopes import of_entries  # noqa: PLC0415  for such alone

        slopes = -(exact(0.5) * inverse * total.reciprocal())
        made = of_entries(made, call.constant(4), slopes)
    op = BatchNorm(scale, shift, mean, made.operand(1))
    return call.step(op, value, shape=value.shape, place=value.place)
