"""Sequences that only cut a value into parts: written back as the Split they stand for.

What enters: a SplitToSequence node and its constant sizes. What leaves: an equal Split node with a
name for every part, so that SequenceAt with a constant position is one of these names.
"""

from __future__ import annotations

import numpy as np

from lipcert.importer.constant import Constant
from lipcert.importer.raw import Array, RawNode


def part_sizes(node: RawNode, sizes: Array | None, length: int) -> tuple[int, ...]:
    """Lengths of the parts along the axis: given, or of one given length, or 1 each."""
    if sizes is None:
        return (1,) * length
    if sizes.ndim == 1:
        parts = tuple(int(size) for size in sizes)
    else:
        chunk = int(sizes)
        if chunk < 1:
            raise ValueError(f"{node.op_type} into parts of length {chunk}")
        parts = tuple(min(chunk, length - start) for start in range(0, length, chunk))
    if sum(parts) != length or min(parts, default=0) < 0:
        raise ValueError(f"parts {parts} do not add up to {length}")
    return parts


def as_split(node: RawNode, parts: tuple[int, ...], opset: int) -> tuple[RawNode, Constant | None]:
    """A Split node with the parts as outputs, and its second input where it takes one."""
    outputs = tuple(f"{node.outputs[0]}@{position}" for position in range(len(parts)))
    axis = node.integer("axis", 0)
    if opset < 13:
        attributes = {"axis": axis, "split": list(parts)}
        split = RawNode("Split", "", 11, node.name, node.inputs[:1], outputs, attributes)
        return split, None
    inputs = (node.inputs[0], f"{node.outputs[0]}@sizes")
    version = 18 if opset >= 18 else 13
    split = RawNode("Split", "", version, node.name, inputs, outputs, {"axis": axis})
    return split, Constant(np.asarray(parts, dtype=np.int64))
