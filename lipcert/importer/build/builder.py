"""Builder: collects IR nodes while the ONNX nodes are translated one by one.

What enters: the static graph and the layout of every value. What leaves: an `ir.Graph` of
per-example shapes, in which every ONNX node keeps its name. Invariant: each ONNX value stands for
one IR value of exactly its example shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np

from lipcert.core.program import Shape
from lipcert.errors import Refusal
from lipcert.importer.constant import Constant, Origin, View
from lipcert.importer.layout import Layout, MixingError
from lipcert.importer.raw import Array, RawNode
from lipcert.importer.static_graph import StaticGraph
from lipcert.ir import Graph, Node, Parameter
from lipcert.operand import Operand
from lipcert.ops.base import Op
from lipcert.ops.shape import Expand, Reshape

MASK: Final = "mask"
"""the one slot of an operator that may hold −∞"""
_INFINITE: Final = "−∞ may only mask the scores of softmax(scores + mask)·values; repair the rest"


class RefusedNodeError(Exception):
    """The node in hand cannot be translated; holds the code, the reason and a remedy."""

    def __init__(self, reason: str, code: str = "LC003", remedy: str = "") -> None:
        self.reason = reason
        self.code = code
        self.remedy = remedy
        super().__init__(reason)


@final
@dataclass(frozen=True, slots=True)
class WeightNaming:
    """What a constant in the slot of a weight is if no initializer stands behind it.

    literals_are_trained: the file does not list its parameters, so such a tensor counts as one.
    folded: names of tensors into which others were folded.
    as_exported: what nodes read is what is trained, even where the graph computes it.
    """

    literals_are_trained: bool
    folded: frozenset[str]
    as_exported: bool = False


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    op: Op
    inputs: tuple[str, ...]
    value: str
    shape: Shape
    owner: RawNode


@final
class Builder:
    """Mutable state of one translation; handlers read the node in hand from `node`."""

    def __init__(
        self, graph: StaticGraph, layouts: Mapping[str, Layout], naming: WeightNaming
    ) -> None:
        self._graph = graph
        self._layouts = layouts
        self._naming = naming
        self._values: dict[str, str] = {graph.input_name: graph.input_name}
        self._shapes: dict[str, Shape] = {graph.input_name: layouts[graph.input_name].example_shape}
        self._drafts: list[_Draft] = []
        self._parameters: dict[str, Parameter] = {}
        self._node: RawNode | None = None
        self._read: set[tuple[int, str]] = set()
        self._covered: set[tuple[int, str]] = set()
        self.refusals: list[Refusal] = []

    # translation ------------------------------------------------------------------------------

    def translate(self, node: RawNode, handler: Handler | None) -> None:
        """Translate one node, or record why it cannot be."""
        data = [name for name in node.inputs if name in self._graph.values]
        if any(name not in self._values for name in data):
            return
        self._node = node
        try:
            if handler is None:
                raise RefusedNodeError("the operator is not supported")
            results = handler(self, node)
            if isinstance(results, str):
                results = {node.outputs[0]: results}
            for name, value in results.items():
                target = self._layouts[name].example_shape
                self._values[name] = self.reshape(value, target)
        except RefusedNodeError as error:
            self.refusals.append(
                Refusal(error.code, node.name, node.op_type, error.reason, error.remedy)
            )
        except (MixingError, ValueError, IndexError, KeyError) as error:
            reason = f"its attributes and shapes do not fit: {error}"
            self.refusals.append(Refusal("LC016", node.name, node.op_type, reason))

    def finish(self) -> Graph:
        """The graph, with the names of the file."""
        names = self._final_names()
        owners = self._node_names()
        nodes = tuple(
            Node(
                owners[index],
                draft.op,
                tuple(names[value] for value in draft.inputs),
                names[draft.value],
                draft.shape,
            )
            for index, draft in enumerate(self._drafts)
        )
        source = self._graph.input_name
        output = names[self._values[self._graph.output_name]]
        return Graph(source, self._shapes[source], output, nodes, self._checked_parameters())

    def _checked_parameters(self) -> dict[str, Parameter]:
        """A tensor that some node also reads as a plain number has uses that no rule follows."""
        hidden = {name for _, name in self._read - self._covered}
        return {
            name: replace(parameter, folded=parameter.folded or name in hidden)
            for name, parameter in self._parameters.items()
        }

    def _final_names(self) -> dict[str, str]:
        names = {self._graph.input_name: self._graph.input_name}
        for onnx_name, value in self._values.items():
            names.setdefault(value, onnx_name)
        taken = set(names.values())
        for draft in self._drafts:
            if draft.value not in names:
                names[draft.value] = _unused(f"{draft.owner.outputs[0]}/1", taken)
        return names

    def _node_names(self) -> list[str]:
        counts: dict[int, int] = {}
        for draft in self._drafts:
            counts[id(draft.owner)] = counts.get(id(draft.owner), 0) + 1
        taken: set[str] = set()
        return [
            _unused(
                draft.owner.name if counts[id(draft.owner)] == 1 else f"{draft.owner.name}/1", taken
            )
            for draft in self._drafts
        ]

    # what handlers ask ------------------------------------------------------------------------

    def is_data(self, name: str) -> bool:
        """Whether an ONNX value depends on the data."""
        return name in self._graph.values

    def value(self, name: str) -> str:
        """The IR value of an ONNX value."""
        if name not in self._values:
            raise RefusedNodeError("an input is a constant where data is expected")
        return self._values[name]

    def shape(self, value: str) -> Shape:
        """Example shape of an IR value."""
        return self._shapes[value]

    def layout(self, name: str) -> Layout:
        """Where the batch lies in an ONNX value."""
        return self._layouts[name]

    def constant(self, name: str, slot: str = "input") -> Constant:
        """A constant input."""
        if self.is_data(name):
            raise RefusedNodeError(f"its {slot} depends on the data")
        if not name:
            raise RefusedNodeError(f"its {slot} is missing", "LC016")
        constant = self._graph.constants[name]
        if slot != MASK and constant.is_float and not np.all(np.isfinite(constant.array)):
            raise RefusedNodeError(
                "a constant that it reads holds NaN or infinite numbers", "LC014", _INFINITE
            )
        if constant.view is not None:
            self._read.add((id(self._node), constant.view.origin.name))
        return constant

    def control(self, node: RawNode) -> list[Array | None]:
        """The constant inputs after the first."""
        return self._graph.control(node)

    def aligned(self, name: str, node: RawNode) -> Constant:
        """A constant broadcast against the node's output, as one example sees it."""
        return self.layout(node.outputs[0]).example_part(self.constant(name))

    def channels_first(self, node: RawNode) -> str:
        """The first input, [channels, *positions] per example."""
        layout = self.layout(node.inputs[0])
        if layout.whole and layout.shape[:1] == (1,):
            return self.reshape(self.value(node.inputs[0]), layout.shape[1:])
        if layout.axis != 0 or layout.is_merged:
            raise RefusedNodeError(
                "one example holds several images along the batch axis",
                remedy="apply the layer to one image per example",
            )
        return self.value(node.inputs[0])

    # what handlers make -----------------------------------------------------------------------

    def emit(self, op: Op, *inputs: str) -> str:
        """Append op(inputs); the shape is that of the op's own rule."""
        if self._node is None:
            raise RuntimeError("emit is called outside of translate")
        shape = op.output_shape([self._shapes[value] for value in inputs])
        value = f"\x00{len(self._drafts)}"  # no ONNX name: replaced in finish()
        self._drafts.append(_Draft(op, inputs, value, shape, self._node))
        self._shapes[value] = shape
        return value

    def reshape(self, value: str, shape: Shape) -> str:
        """The value in another shape."""
        if self._shapes[value] == shape:
            return value
        return self.emit(Reshape(shape), value)

    def expand(self, value: str, shape: Shape) -> str:
        """The value broadcast to a shape."""
        own = self._shapes[value]
        if own == shape:
            return value
        value = self.reshape(value, (1,) * (len(shape) - len(own)) + own)
        return value if self._shapes[value] == shape else self.emit(Expand(shape), value)

    def operand(self, constant: Constant) -> Operand:
        """A constant as an op uses it; its parameter becomes one of the graph."""
        if constant.is_parameter and constant.view is not None:
            self._register(constant.view.origin)
            self._covered.add((id(self._node), constant.view.origin.name))
        return constant.operand()

    def weight(self, constant: Constant, name: str) -> Operand:
        """A constant in the slot of a weight: a parameter even without an initializer."""
        view = constant.view
        is_plain = view is None or view.origin.literal
        if not is_plain or constant.array.size <= 1 or not self._naming.literals_are_trained:
            return self.operand(constant)
        if view is None:
            view = View.whole(Origin(name, constant.shape, folded=False))
        origin = Origin(view.origin.name, view.origin.shape, folded=view.origin.folded)
        trained = Constant(constant.array, View(origin, view.index, view.scale))
        return self.operand(trained)

    def _register(self, origin: Origin) -> None:
        is_folded = origin.name in self._naming.folded or (
            origin.folded and not self._naming.as_exported
        )
        self._parameters[origin.name] = Parameter(origin.name, origin.shape, folded=is_folded)


Handler = Callable[[Builder, RawNode], "str | dict[str, str]"]


def _unused(name: str, taken: set[str]) -> str:
    """The name, or with a number that makes it new: "a/1" becomes "a/2"."""
    stem, slash, _ = name.rpartition("/1")
    number = 1
    while name in taken:
        number += 1
        name = f"{stem}/{number}" if slash else f"{name}/{number}"
    taken.add(name)
    return name
