"""Raw models: an ONNX graph as plain Python data, before anything is interpreted.

What enters: records made by `gate`. What leaves: the same, frozen. Invariant: no protobuf object
and no lazily read byte stands behind any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True, eq=False)
class RawNode:
    """One ONNX node. `since_version` is that of its schema, 0 where no schema is known.

    `metadata` holds what the exporter noted about the node.
    """

    op_type: str
    domain: str
    since_version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(self.attributes.get(name, default))

    def real(self, name: str, default: float) -> float:
        """A float attribute, as the float32 number that the file holds."""
        return float(np.float32(self.attributes.get(name, default)))

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        return str(self.attributes.get(name, default))

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list-of-integers attribute, None where it is absent."""
        value = self.attributes.get(name)
        return None if value is None else tuple(int(item) for item in value)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs that are not left out."""
        return tuple(name for name in self.outputs if name)

    def input(self, index: int) -> str:
        """Name of an input, "" where an optional one is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""


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
