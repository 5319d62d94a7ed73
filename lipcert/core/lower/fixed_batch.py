"""Read files with a fixed batch of several examples as files of one: adapt constants and sizes."""

from typing import Final

import numpy as np

from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.layout_ops import reshaped
from lipcert.core.lower.values import Constant, Data, Value
from lipcert.core.program import Place, Shape
from lipcert.core.reader.records import Node

_SIDE_BY_SIDE: Final = frozenset(
    {"Add", "Concat", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum", "Where"}
)
"""Operators that combine entries of examples with constants."""


def of_one_example(node: Node, inputs: list[Value | None], count: int) -> list[Value | None]:
    """Return the inputs of a node; constants that repeat for all `count` examples are cut to one.

    Axes are counted from the front in Concat, and from behind elsewhere. Proof: along the axis of
    the batch, the entries of such a constant are equal from example to example, so each example
    reads those of the first; that is a part of the constant, so that no gain grows.
    """
    data = next((v for v in inputs if isinstance(v, Data) and v.place is not None), None)
    if node.op_type not in _SIDE_BY_SIDE or data is None or None in inputs:
        return inputs
    if data.place is None or data.place.before != 1:
        return inputs
    axis, length = data.place.axis, data.shape[data.place.axis]
    found: list[Value | None] = []
    for value in inputs:
        if isinstance(value, Constant) and value.place is None:
            own = axis + (0 if node.op_type == "Concat" else len(value.shape) - len(data.shape))
            if 0 <= own < len(value.shape):
                found.append(_first_of(value, own, length, count) or value)
                continue
        found.append(value)
    return found


def _first_of(value: Constant, axis: int, length: int, count: int) -> Constant | None:
    """Return the part for the first of `count` examples if all parts are equal, else None."""
    if value.shape[axis] != length * count or (value.varies is not None and value.varies.any()):
        return None
    split = (*value.shape[:axis], count, length, *value.shape[axis + 1 :])
    for end in (value.lo, value.hi):
        parts = np.moveaxis(end.reshape(split), axis, 0)
        if not (parts == parts[0]).all():
            return None
    place = (slice(None),) * axis
    return value.rearranged(lambda entries: entries[(*place, slice(0, length))], Place(axis))


def sizes_of_one(value: Value, sizes: Shape, count: int) -> tuple[Shape, list[bool]] | None:
    """Return the sizes of a reshape for one example, and which of them grow; None if none fit.

    The file writes the size of its batch in the target shape: it belongs to the axis that for such
    a batch is before·N·after as in `reshaped`, and no other axis fits.
    """
    for axis, size in enumerate(sizes):
        shape = (*sizes[:axis], size // count, *sizes[axis + 1 :])
        grows = [place == axis for place in range(len(sizes))]
        if size and size % count == 0:
            try:
                reshaped(value, shape, grows)
            except Unsupported:
                continue
            return shape, grows
    return None
