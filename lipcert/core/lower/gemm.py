"""Lower products of values with a constant matrix."""

import numpy as np

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import FIXED, Constant, Data, Value
from lipcert.core.program import Dense


def dense(call: Call, value: Data, weight: Constant, bias: Constant | None = None) -> Data:
    """Multiply the last axis by a matrix [outputs, inputs]; the batch may lie on any other axis."""
    outputs, inputs = weight.shape
    if value.place is not None and value.place.axis == len(value.shape) - 1:
        raise Unsupported(FIXED)
    if value.shape[-1] != inputs:
        raise Unsupported("the sizes of a product do not fit")
    op = Dense(weight.operand(2), None if bias is None else bias.operand(1))
    return call.step(op, value, shape=(*value.shape[:-1], outputs), place=value.place)


def gemm(call: Call) -> Value:
    """Lower Gemm, alpha·A·B + beta·C: as a layer, or as the nodes that it stands for."""
    factors = call.real("alpha", 1.0), call.real("beta", 1.0)
    layer = _layer(call) if factors == (1.0, 1.0) and not call.integer("transA", 0) else None
    if layer is not None:
        return layer
    from lipcert.core.lower.composites import gemm as composed  # noqa: PLC0415  for rare forms only

    return composed(call)


def _layer(call: Call) -> Data | None:
    """Return A·B + C as one layer if B is a constant matrix and C a constant row, else None.

    No other node reads A·B.
    """
    value, weight = call.value(0), call.value(1)
    if isinstance(value, Constant) or isinstance(weight, Data) or weight.place is not None:
        return None
    if not len(value.shape) == len(weight.shape) == 2:
        return None
    if not call.integer("transB", 0):
        weight = weight.rearranged(np.transpose, None)
    if not call.has(2):
        return dense(call, value, weight)
    row, size = call.value(2), weight.shape[0]
    if isinstance(row, Data) or row.place is not None or row.shape not in {(size,), (1, size)}:
        return None
    row = row.rearranged(np.ravel, None)
    if not row.terms:
        return dense(call, value, weight, row)
    from lipcert.core.lower.entrywise import combined  # noqa: PLC0415  for such alone

    return combined(call, (dense(call, value, weight), row), (1, 1))
