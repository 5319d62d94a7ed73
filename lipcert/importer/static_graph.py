"""StaticGraph: the data path of a model at one batch size.

What enters: the nodes that depend on the data, with the shapes and constants found for them. What
leaves: the same, frozen. Invariant: every node reads values and constants that the graph holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from lipcert.core.program import Shape
from lipcert.importer.constant import Constant
from lipcert.importer.raw import Array, RawGraph, RawNode


@final
@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that depends on the data."""

    shape: Shape
    dtype: np.dtype[Any]


@final
@dataclass(frozen=True, slots=True, eq=False)
class StaticGraph:
    """The data path at one batch size; `constants` holds every constant that its nodes read."""

    nodes: tuple[RawNode, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, Constant]
    input_name: str
    output_name: str
    bound: frozenset[str]
    """parameters found under another name"""
    scattered: frozenset[str]
    """parameters that several tensors of the file hold, or none (a dropped bias of zeros)"""
    absorbed: frozenset[str]
    """tensors from which other constants were computed: their uses are not all visible"""

    def shape(self, name: str) -> Shape:
        """Shape of a value or constant."""
        value = self.values.get(name)
        return self.constants[name].shape if value is None else value.shape

    def control(self, node: RawNode) -> list[Array | None]:
        """The constant inputs of a node after the first; ValueError where one depends on data."""
        if any(name in self.values for name in node.inputs[1:]):
            raise ValueError("a shape, axis or index depends on the data")
        return [self.constants[name].array if name else None for name in node.inputs[1:]]


def needed_values(nodes: Sequence[RawNode], output: str) -> set[str]:
    """Names of the values from which the output is computed."""
    live = {output}
    for node in reversed(nodes):
        if any(name in live for name in node.outputs):
            live.update(values_read(node))
    return live


def values_read(node: RawNode) -> set[str]:
    """Names of the values that a node reads, also inside its sub-graphs."""
    names = {name for name in node.inputs if name}
    for attribute in node.attributes.values():
        if isinstance(attribute, RawGraph):
            names.update(attribute.outputs)
            for inner in attribute.nodes:
                names |= values_read(inner)
    return names
