"""Speller: writes standard nodes that compute what one composite node computes.

What enters: a node and the shapes and types of its inputs. What leaves: a `Spelling`: nodes in
order, the constants that they read beside those of the graph, and the node's own first output.
Invariant: every written node is of the version that the operator set of the file defines, but for
ROOT_MULTIPLE, which no operator set has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, final

import numpy as np
from onnx import defs

from lipcert.importer.constant import Constant
from lipcert.importer.raw import Array, RawNode
from lipcert.importer.static_graph import Value

ROOT_MULTIPLE: Final = "RootMultiple"
"""√square·x for a value x that depends on the data; no file can hold such a node"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Spelling:
    """Nodes that stand for one, and constants that only they read."""

    nodes: tuple[RawNode, ...]
    constants: Mapping[str, Constant]


@final
class Speller:
    """Collects the nodes; `value` tells shape and type of a value or constant of the graph."""

    def __init__(
        self,
        node: RawNode,
        value: Callable[[str], Value],
        constants: Mapping[str, Constant],
        opset: int,
    ) -> None:
        self.node = node
        self.value = value
        self._known = constants
        self._opset = opset
        self._nodes: list[RawNode] = []
        self._constants: dict[str, Constant] = {}

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the first input."""
        return self.value(self.node.inputs[0]).dtype

    def is_constant(self, name: str) -> bool:
        """Whether a value does not depend on the data."""
        return name in self._known or name in self._constants

    def array(self, name: str, what: str) -> Array:
        """The numbers of a constant input."""
        if name not in self._known:
            raise ValueError(f"its {what} depends on the data")
        return self._known[name].array

    def constant(self, array: Array) -> str:
        """A new constant."""
        name = f"{self.node.outputs[0]}@c{len(self._constants)}"
        self._constants[name] = Constant(array)
        return name

    def emit(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """A new node; the name of its output."""
        output = f"{self.node.outputs[0]}@{len(self._nodes)}"
        self._write(op_type, inputs, output, attributes)
        return output

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """The value in another shape."""
        return self.emit("Reshape", name, self.constant(np.asarray(shape, dtype=np.int64)))

    def transpose(self, name: str, perm: Sequence[int]) -> str:
        """The value with permuted axes."""
        if list(perm) == list(range(len(perm))):
            return name
        return self.emit("Transpose", name, perm=tuple(perm))

    def reduce(self, op_type: str, name: str, axes: Sequence[int], *, keepdims: bool) -> str:
        """A Reduce node, whose axes became an input at some version."""
        first = 13 if op_type == "ReduceSum" else 18
        if self._opset >= first:
            places = self.constant(np.asarray(axes, dtype=np.int64))
            return self.emit(op_type, name, places, keepdims=int(keepdims))
        return self.emit(op_type, name, axes=tuple(axes), keepdims=int(keepdims))

    def root_multiple(self, name: str, square: Fraction) -> str:
        """The value times √square, which need not be a number of any type."""
        return self.emit(ROOT_MULTIPLE, name, square=square)

    def finish(self, name: str) -> Spelling:
        """The value is the node's first output."""
        self._write("Identity", (name,), self.node.outputs[0], {})
        return Spelling(tuple(self._nodes), self._constants)

    def _write(
        self, op_type: str, inputs: tuple[str, ...], output: str, attributes: Mapping[str, object]
    ) -> None:
        is_own = op_type == ROOT_MULTIPLE
        version = 1 if is_own else defs.get_schema(op_type, self._opset, "").since_version
        name = f"{self.node.name}/{op_type}"
        metadata = self.node.metadata
        self._nodes.append(
            RawNode(op_type, "", version, name, inputs, (output,), dict(attributes), metadata)
        )
