"""From a raw model to the data path: static shapes, constants computed, parameters kept.

What enters: a raw model and a batch size. What leaves: a `StaticGraph`, the nodes that depend on
the data and lead to the output, with the shape of every value at that batch size. Invariant: a
trained tensor is never replaced by computed numbers unless it is marked as folded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
from onnx import helper

from lipcert.errors import Refusal
from lipcert.importer.arithmetic import is_known
from lipcert.importer.batch_size import BatchSize, BatchSizeError
from lipcert.importer.bindings import with_bindings
from lipcert.importer.composites import is_composite, spelled_out
from lipcert.importer.computed import computed
from lipcert.importer.constant import Constant, View
from lipcert.importer.guards import STEPS, Guards
from lipcert.importer.inference import ShapeError, ShapeInference
from lipcert.importer.metadata import Provenance
from lipcert.importer.opsets import RANDOM, refusal_of
from lipcert.importer.raw import Array, RawGraph, RawModel, RawNode
from lipcert.importer.sequences import as_split, part_sizes
from lipcert.importer.spelling import ROOT_MULTIPLE
from lipcert.importer.static_graph import StaticGraph, Value, needed_values

_STATIC: Final = "export with axis 0 for the batch and fixed sizes for all other axes"
_FLOATS: Final = "export the network before quantisation or without its discrete head"
_SHAPES_ALONE: Final = "take sizes from shapes alone, or export with a fixed batch size of 1"
_OTHER_OUTPUT: Final = "choose an output before it, such as that before a discrete head"
_SEQUENCES: Final = frozenset({"SplitToSequence", "SequenceAt", "SequenceLength"})
_FREE: Final = frozenset({"Shape", "Size", "If"}) | _SEQUENCES
"""ops that are understood where their input is"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """A static graph; with refusals, as much of it as could be followed."""

    graph: StaticGraph
    refusals: tuple[Refusal, ...]


def fold(
    model: RawModel,
    provenance: Provenance,
    ends: tuple[str, str],
    example: Value,
    batch: int,
) -> Folded:
    """Walk the graph once, in its order, from an input of this shape with so many examples.

    ends: names of the input and of the output.
    """
    folder = _Folder(model, provenance, batch)
    source, output = ends
    folder.values[source] = example
    folder.add_tensors(model.graph, {})
    live = needed_values(model.graph.nodes, output)
    for node in model.graph.nodes:
        if any(name in live for name in node.outputs):
            folder.visit(node, {})
    refusals = folder.all_refusals(output) or folder.end_refusals(output)
    return Folded(folder.graph(source, output, partial=bool(refusals)), refusals)


@final
class _Folder:
    """State of one walk."""

    def __init__(self, model: RawModel, provenance: Provenance, batch: int) -> None:
        self._batch_size = BatchSize(batch)
        self._provenance = provenance
        self._opset = model.opset.get("ai.onnx", 1)
        self._inference = ShapeInference(model)
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Constant] = {}
        self.refusals: list[Refusal] = []
        self._unknown: set[str] = set()
        self._nodes: list[RawNode] = []
        self._bound: set[str] = set()
        self._scattered: set[str] = set()
        self._absorbed: set[str] = set()
        self._branches = 0
        self._sequences: dict[str, tuple[str, ...]] = {}
        self._guards = Guards(self.constants)
        self._steps: dict[str, Refusal] = {}
        self._read_by_lost: set[str] = set()

    def graph(self, source: str, output: str, *, partial: bool) -> StaticGraph:
        """The result, without nodes that the output does not need; partial: without steps."""
        live = needed_values(self._nodes, output)
        nodes = tuple(
            node
            for node in self._nodes
            if (node.op_type not in STEPS if partial else live.intersection(node.outputs))
        )
        return StaticGraph(
            nodes,
            self.values,
            self.constants,
            source,
            output,
            frozenset(self._bound),
            frozenset(self._scattered),
            frozenset(self._absorbed),
        )

    def all_refusals(self, output: str) -> tuple[Refusal, ...]:
        """Every offender; a step function only where something still reads its jumps."""
        live = needed_values(self._nodes, output)
        for name in self._read_by_lost:
            live |= needed_values(self._nodes, name)
        steps = [refusal for name, refusal in self._steps.items() if name in live]
        return (*self.refusals, *steps)

    def end_refusals(self, output: str) -> tuple[Refusal, ...]:
        """Why the output is no function of the input that has a gradient."""
        if output not in self.values:
            reason = f"the output {output!r} does not depend on the input"
            return (Refusal("LC008", "", "", reason, _OTHER_OUTPUT),)
        dtype = self.values[output].dtype
        if dtype.kind == "f":
            return ()
        reason = f"the output {output!r} holds {dtype}, not floating-point numbers"
        return (Refusal("LC005", "", "", reason, _OTHER_OUTPUT),)

    def add_tensors(self, graph: RawGraph, names: Mapping[str, str]) -> None:
        """Enter the initializers of a graph, renamed."""
        for name, array in graph.tensors.items():
            view = None
            if array.dtype.kind == "f":
                view = View.whole(self._provenance.origin(name, array))
            self.constants[names.get(name, name)] = Constant(array, view)

    def visit(self, node: RawNode, names: Mapping[str, str]) -> None:
        """Process one node whose value names are replaced according to `names`."""
        node = replace(
            node,
            inputs=tuple(names.get(name, name) for name in node.inputs),
            outputs=tuple(names.get(name, name) for name in node.outputs),
        )
        try:
            self._follow(node, names)
        except BatchSizeError as error:
            self._refuse(node, "LC008", str(error), _SHAPES_ALONE)

    def _follow(self, node: RawNode, names: Mapping[str, str]) -> None:
        if node.op_type == "If" and not node.domain and node.input(0) in self.constants:
            self._branch(node, names)
        elif any(name in self._unknown for name in node.inputs):
            self._lose(node, None)
        elif node.op_type in {"Shape", "Size"} and not node.domain:
            self._measure(node)
        elif node.op_type in _SEQUENCES and not node.domain:
            self._cut(node)
        elif node.op_type == "CastLike" and node.inputs[0] in self.constants:
            self._cast_like(node)
        elif all(not name or name in self.constants for name in node.inputs) and not any(
            isinstance(attribute, RawGraph) for attribute in node.attributes.values()
        ):
            self._compute(node)
        else:
            self._keep(node)

    def _refuse(self, node: RawNode, code: str, reason: str, remedy: str = "") -> None:
        self._lose(node, Refusal(code, node.name, node.op_type, reason, remedy))

    def _lose(self, node: RawNode, refusal: Refusal | None) -> None:
        """Mark the outputs as unknown; further offenders downstream are still reported."""
        if refusal is None and not is_known(node.op_type) and node.op_type not in _FREE:
            refusal = refusal_of(node)
        if refusal is not None:
            self.refusals.append(refusal)
        self._read_by_lost.update(name for name in node.inputs if name in self.values)
        self._unknown.update(node.outputs)

    def _branch(self, node: RawNode, names: Mapping[str, str]) -> None:
        """Replace an If with a constant condition by the chosen branch."""
        self._batch_size.condition(node.inputs[0])
        chosen = (
            "then_branch" if bool(self.constants[node.inputs[0]].array.all()) else "else_branch"
        )
        body = node.attributes.get(chosen)
        if not isinstance(body, RawGraph) or len(body.outputs) != len(node.outputs):
            self._refuse(node, "LC004", f"the {chosen} is missing or has other outputs")
            return
        self._branches += 1
        local = {
            name: f"{name}@{self._branches}"
            for name in (*body.tensors, *(out for inner in body.nodes for out in inner.outputs))
            if name
        }
        inner_names = {**names, **local}
        self.add_tensors(body, inner_names)
        for inner in body.nodes:
            self.visit(replace(inner, name=f"{node.name}/{inner.name}"), inner_names)
        for result, output in zip(body.outputs, node.outputs, strict=True):
            self._alias(inner_names.get(result, result), output)

    def _alias(self, name: str, output: str) -> None:
        if name in self.constants:
            self.constants[output] = self.constants[name]
            self._batch_size.alias(name, output)
        elif name in self.values:
            self.values[output] = self.values[name]
            self._nodes.append(RawNode("Identity", "", 1, output, (name,), (output,), {}))
        else:
            self._unknown.add(output)

    def _cut(self, node: RawNode) -> None:
        """A sequence of parts of one value: a Split, whose outputs are picked by position."""
        source = node.inputs[0]
        second = node.input(1)
        try:
            self._batch_size.condition(second)
            given = self.constants[second].array if second else None
            if node.op_type == "SplitToSequence":
                self._cut_into_parts(node, source, given)
            elif node.op_type == "SequenceLength":
                count = np.asarray(len(self._sequences[source]), dtype=np.int64)
                self.constants[node.outputs[0]] = Constant(count)
            elif given is not None:
                self._alias(self._sequences[source][int(given)], node.outputs[0])
        except (ValueError, TypeError, KeyError, IndexError) as error:
            self._refuse(node, "LC004", f"only a value cut at constant places is followed: {error}")

    def _cut_into_parts(self, node: RawNode, source: str, given: Array | None) -> None:
        shape = self._value(source).shape
        self._batch_size.part(shape[node.integer("axis", 0)])
        if given is None and not node.integer("keepdims", 1):
            raise ValueError("keepdims=0 is not supported")
        parts = part_sizes(node, given, shape[node.integer("axis", 0)])
        split, sizes = as_split(node, parts, self._opset)
        if sizes is not None:
            self.constants[split.inputs[1]] = sizes
        self._follow(split, {})
        self._sequences[node.outputs[0]] = split.outputs

    def _measure(self, node: RawNode) -> None:
        name = node.inputs[0]
        is_data = name in self.values
        shape = self.values[name].shape if is_data else self.constants[name].shape
        if node.op_type == "Size":
            array = np.asarray(math.prod(shape), dtype=np.int64)
        else:
            end = node.attributes.get("end")
            array = np.asarray(shape[slice(node.integer("start", 0), end)], dtype=np.int64)
        self._batch_size.measure(node.outputs[0], array, name, is_data=is_data)
        self.constants[node.outputs[0]] = Constant(array)

    def _cast_like(self, node: RawNode) -> None:
        """A constant takes the data type of a value."""
        name = node.input(1)
        model = self.values.get(name)
        dtype = self.constants[name].array.dtype if model is None else model.dtype
        code = int(helper.np_dtype_to_tensor_dtype(dtype))
        cast = replace(node, op_type="Cast", inputs=node.inputs[:1], attributes={"to": code})
        self._compute(cast)

    def _compute(self, node: RawNode) -> None:
        """A node whose inputs are all constant."""
        if is_composite(node):
            self._spell_out(node)
            return
        if node.domain or node.op_type in RANDOM or not is_known(node.op_type):
            refusal = refusal_of(node) or Refusal(
                "LC003", node.name, node.op_type, "it cannot be computed from constants here"
            )
            self._lose(node, refusal)
            return
        inputs = [self.constants[name] if name else None for name in node.inputs]
        arrays = [None if item is None else item.array for item in inputs]
        try:
            self._batch_size.compute(node, arrays)
            found = computed(node, inputs)
        except BatchSizeError:
            raise
        except (ValueError, IndexError, TypeError, KeyError, OverflowError) as error:
            self._refuse(node, "LC016", f"it cannot be computed: {error}")
            return
        self._absorbed |= found.absorbed
        for name, constant in zip(node.outputs, found.outputs, strict=False):
            if name:
                self.constants[name] = constant

    def _keep(self, node: RawNode) -> None:
        """A node that depends on the data."""
        if node.op_type in STEPS and not node.domain:
            self._keep_step(node)
            return
        refusal = refusal_of(node)
        if refusal is not None:
            self._lose(node, refusal)
            return
        if is_composite(node):
            self._spell_out(node)
            return
        for name in node.inputs:
            if name in self.values and self.values[name].dtype.kind != "f":
                is_condition = node.op_type == "Where" and name in self._steps
                if not is_condition:
                    reason = f"it reads the integers or truth values {name!r}"
                    self._refuse(node, "LC005", reason, _FLOATS)
                    return
        self._append(self._guards.replaced(node))

    def _keep_step(self, node: RawNode) -> None:
        """A step function: fine inside of a continuous one that is recognised, refused else."""
        self._append(node)
        refusal = refusal_of(node)
        if refusal is not None and node.outputs[0] in self.values:
            self._steps[node.outputs[0]] = refusal

    def _append(self, node: RawNode) -> None:
        try:
            found = self._inference.outputs(node, self.values, self.constants)
        except ShapeError as error:
            self._refuse(node, error.code, str(error), _STATIC)
            return
        arrays = [self.constants[n].array if n in self.constants else None for n in node.inputs]
        try:
            self._batch_size.read(node, arrays, self._value(node.inputs[0]).shape)
        except (IndexError, OverflowError) as error:
            raise BatchSizeError from error
        self.values.update(found)
        self._unknown.update(name for name in node.output_names if name not in found)
        bound, named = with_bindings(node, self._provenance, self.constants)
        for item in named:
            self.constants[item.name] = item.constant
            self._bound.add(item.target)
            self._scattered |= {item.target} if item.scattered else set()
        self._nodes.append(bound)
        self._guards.add(bound)

    def _spell_out(self, node: RawNode) -> None:
        """Walk through the standard operators that a composite one stands for."""
        try:
            spelling = spelled_out(node, self._value, self.constants, self._opset)
        except ValueError as error:
            self._refuse(node, "LC003", str(error))
            return
        self.constants.update(spelling.constants)
        for piece in spelling.nodes:
            if piece.op_type == ROOT_MULTIPLE:
                self._append(piece)
            else:
                self.visit(piece, {})
        self._unknown.update(node.output_names[1:])

    def _value(self, name: str) -> Value:
        constant = self.constants.get(name)
        if constant is None:
            return self.values[name]
        return Value(constant.shape, constant.array.dtype)
