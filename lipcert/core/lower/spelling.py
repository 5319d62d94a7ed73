"""Apply operators to the values of a node, to build composite operators."""

from typing import Final

import numpy as np

from lipcert.core.interval import Interval, exact
from lipcert.core.lower.call import Call
from lipcert.core.lower.layout_ops import check_apart, normal_axes
from lipcert.core.lower.moves import permute
from lipcert.core.lower.operators import rule_of
from lipcert.core.lower.values import Constant, Value
from lipcert.core.reader.records import Attribute, AttributeValue, Node

_VERSION: Final = 21
"""The operator set in which the definitions are written."""
_KINDS: Final = {int: "INT", float: "FLOAT", bytes: "STRING", tuple: "INTS"}


def apply(call: Call, op_type: str, *values: Value, **attributes: AttributeValue) -> Value:
    """Apply another operator to values of this node."""
    given = {name: Attribute(_KINDS[type(item)], item) for name, item in attributes.items()}
    node = Node(call.node.name, op_type, "", (), call.node.outputs, given)
    inner = call.inner(node, _VERSION, values)
    found = rule_of(node, values)(inner)
    inner.check_read()
    return found[0] if isinstance(found, list) else found


def number(value: float | Interval) -> Constant:
    """Return a number of a definition as a constant."""
    known = value if isinstance(value, Interval) else exact(value)
    return Constant(known.lo, known.lo if known.lo == known.hi else known.hi)


def whole(*items: int) -> Constant:
    """Return a constant of whole numbers, such as sizes, axes or places."""
    return Constant.of(np.asarray(items, dtype=np.int64))


def inverse_root(count: int) -> Constant:
    """Enclose 1/√n in a constant."""
    return number(exact(float(count)).root().reciprocal())


def along_axis(call: Call, value: Value, axis: int, matrix: Constant) -> Value:
    """Multiply every run along an axis by a matrix [inputs, outputs]."""
    last = len(value.shape) - 1
    swap = list(range(last + 1))
    swap[axis], swap[last] = last, axis
    return permute(call, apply(call, "MatMul", permute(call, value, swap), matrix), swap)


def reduced(call: Call, op_type: str, value: Value, axes: tuple[int, ...], *, keep: bool) -> Value:
    """Apply a reduction over axes; without axes, return the value itself."""
    if not axes:
        return value
    return apply(call, op_type, value, whole(*axes), keepdims=int(keep))


def reduced_axes(call: Call, value: Value) -> tuple[tuple[int, ...] | None, bool]:
    """Return the axes of a Reduce node (None for none), and whether they stay with size 1."""
    rank = len(value.shape)
    given = call.axes(1, 13 if call.node.op_type == "ReduceSum" else 18)
    idle, keeps = call.integer("noop_with_empty_axes", 0), call.integer("keepdims", 1)
    if not given and idle:
        return None, bool(keeps)
    axes = normal_axes(given, rank) if given else tuple(range(rank))
    check_apart(value, axes)
    return axes, bool(keeps)


def without_axes(call: Call, value: Value, axes: tuple[int, ...], *, keeps: bool) -> Value:
    """Drop the axes that a reduction has left with size 1, unless it keeps them."""
    return value if keeps or not axes else apply(call, "Squeeze", value, whole(*axes))
