"""Raw models: an ONNX graph as plain Python data, before anything is interpreted.

What enters: records made by `gate`. What leaves: the same, frozen. Invariant: no protobuf object
and no lazily read byte stands behind any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt

from lipcert.errors import Refusal

Array = npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True, eq=False)
class RawNode:
    """One ONNX node; metadata: what the exporter noted about it."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(self.attributes.get(name, default))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs that are not left out."""
        return tuple(name for name in self.outputs if name)


@final
@dataclass(frozen=True, slots=True)
class RawInput:
    """A declared graph input: numpy dtype (None: not a numeric tensor) and dimensions.

    A dimension is an integer, a symbol, or "" where nothing is said; dims None: no shape at all.
    """

    name: str
    dtype: np.dtype[Any] | None
    dims: tuple[int | str, ...] | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class RawGraph:
    """Nodes in order of computation, constant tensors, inputs (initializers excluded), outputs."""

    nodes: tuple[RawNode, ...]
    tensors: Mapping[str, Array]
    inputs: tuple[RawInput, ...]
    outputs: tuple[str, ...]
    metadata: Mapping[str, str]
    overridable: tuple[str, ...] = ()
    """initializers that are also graph inputs"""
    faults: Mapping[str, Refusal] = field(default_factory=dict)
    """what stands against values that only matters where something depends on them, by name"""
    folded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """tensor that an optimiser computed → all names that went into it, where it noted them"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class RawModel:
    """A structurally sound model: functions expanded, every tensor finite and within limits."""

    graph: RawGraph
    opset: Mapping[str, int]
    ir_version: int
    producer: str
    path: str
    sha256: str
    external: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file with external data, by its path relative to the model's folder"""


def needed_values(nodes: Sequence[RawNode], *outputs: str) -> set[str]:
    """Names of the values from which the outputs are computed."""
    live = set(outputs)
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
