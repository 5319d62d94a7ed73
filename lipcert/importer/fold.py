"""From a raw model to the data path: static shapes, constants computed, parameters kept.

What enters: a raw model and a batch size. What leaves: a `StaticGraph`, the nodes that depend on
the data and lead to the output, with the shape of every value at that batch size. Invariant: a
trained tensor is never replaced by computed numbers unless it is marked as folded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, final

import numpy as np
from onnx import TypeProto, defs, helper, numpy_helper, shape_inference

from lipcert.errors import Refusal
from lipcert.facts import Shape
from lipcert.importer.arithmetic import evaluate_constant, is_known
from lipcert.importer.constant import Constant, Origin, View
from lipcert.importer.limits import MAX_VALUE_ELEMENTS
from lipcert.importer.metadata import Provenance
from lipcert.importer.opsets import RANDOM, refusal_of
from lipcert.importer.raw import Array, RawGraph, RawModel, RawNode
from lipcert.importer.rearrange import REARRANGERS, rearranger
from lipcert.importer.sequences import as_split, part_sizes

__all__ = ["Folded", "StaticGraph", "Value", "fold", "needed_values", "values_read"]


_SEQUENCES: Final = frozenset({"SplitToSequence", "SequenceAt", "SequenceLength"})
_FREE: Final = frozenset({"Shape", "Size", "If"}) | _SEQUENCES
"""ops that are understood where their input is"""
_SHAPE_KEEPING: Final = frozenset({"GroupNormalization", "LayerNormalization", "RMSNormalization"})
"""ops defined by a function body, through which onnx does not always infer a shape"""


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


@final
@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """A static graph, or the reasons why there is none."""

    graph: StaticGraph | None
    refusals: tuple[Refusal, ...]


def fold(
    model: RawModel, provenance: Provenance, input_shape: Shape, dtype: np.dtype[Any], output: str
) -> Folded:
    """Walk the graph once, in its order, for an input of this shape."""
    folder = _Folder(model, provenance)
    source = model.graph.inputs[0].name
    folder.values[source] = Value(input_shape, dtype)
    folder.add_tensors(model.graph, {})
    live = needed_values(model.graph.nodes, output)
    for node in model.graph.nodes:
        if any(name in live for name in node.outputs):
            folder.visit(node, {})
    if folder.refusals:
        return Folded(None, tuple(folder.refusals))
    if output not in folder.values:
        reason = f"the output {output!r} does not depend on the input"
        return Folded(None, (Refusal("LC008", "", "", reason),))
    dtype = folder.values[output].dtype
    if dtype.kind != "f":
        reason = f"the output {output!r} holds {dtype}, not floating-point numbers"
        remedy = "choose the output before the discrete head"
        return Folded(None, (Refusal("LC005", "", "", reason, remedy),))
    return Folded(folder.graph(source, output), ())


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


@final
class _Folder:
    """State of one walk."""

    def __init__(self, model: RawModel, provenance: Provenance) -> None:
        self._provenance = provenance
        self._opsets = [
            helper.make_opsetid("" if domain == "ai.onnx" else domain, version)
            for domain, version in model.opset.items()
        ]
        self._opset = model.opset.get("ai.onnx", 1)
        self._ir_version = model.ir_version
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Constant] = {}
        self.refusals: list[Refusal] = []
        self._unknown: set[str] = set()
        self._nodes: list[RawNode] = []
        self._bound: set[str] = set()
        self._absorbed: set[str] = set()
        self._branches = 0
        self._sequences: dict[str, tuple[str, ...]] = {}

    def graph(self, source: str, output: str) -> StaticGraph:
        """The result, without nodes that the output does not need."""
        live = needed_values(self._nodes, output)
        nodes = tuple(n for n in self._nodes if any(name in live for name in n.outputs))
        return StaticGraph(
            nodes,
            self.values,
            self.constants,
            source,
            output,
            frozenset(self._bound),
            frozenset(self._absorbed),
        )

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

    def _refuse(self, node: RawNode, code: str, reason: str) -> None:
        self._lose(node, Refusal(code, node.name, node.op_type, reason))

    def _lose(self, node: RawNode, refusal: Refusal | None) -> None:
        """Mark the outputs as unknown; further offenders downstream are still reported."""
        if refusal is None and not is_known(node.op_type) and node.op_type not in _FREE:
            refusal = refusal_of(node)
        if refusal is not None:
            self.refusals.append(refusal)
        self._unknown.update(node.outputs)

    def _branch(self, node: RawNode, names: Mapping[str, str]) -> None:
        """Replace an If with a constant condition by the chosen branch."""
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
        shape = self.values[source].shape
        if given is None and not node.integer("keepdims", 1):
            raise ValueError("keepdims=0 is not supported")
        parts = part_sizes(node, given, shape[node.integer("axis", 0)])
        split, sizes = as_split(node, parts, self._opset)
        if sizes is not None:
            self.constants[split.inputs[1]] = sizes
        self._keep(split)
        self._sequences[node.outputs[0]] = split.outputs

    def _measure(self, node: RawNode) -> None:
        name = node.inputs[0]
        shape = self.constants[name].shape if name in self.constants else self.values[name].shape
        if node.op_type == "Size":
            array = np.asarray(math.prod(shape), dtype=np.int64)
        else:
            end = node.attributes.get("end")
            array = np.asarray(shape[slice(node.integer("start", 0), end)], dtype=np.int64)
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
        if node.domain or node.op_type in RANDOM or not is_known(node.op_type):
            refusal = refusal_of(node) or Refusal(
                "LC003", node.name, node.op_type, "it cannot be computed from constants here"
            )
            self._lose(node, refusal)
            return
        inputs = [self.constants[name] if name else None for name in node.inputs]
        try:
            outputs = self._outputs(node, inputs)
        except (ValueError, IndexError, TypeError, KeyError, OverflowError) as error:
            self._refuse(node, "LC016", f"it cannot be computed: {error}")
            return
        for name, constant in zip(node.outputs, outputs, strict=False):
            if name:
                self.constants[name] = constant

    def _outputs(self, node: RawNode, inputs: Sequence[Constant | None]) -> tuple[Constant, ...]:
        first = inputs[0] if inputs else None
        arrays = [None if item is None else item.array for item in inputs]
        if node.op_type == "Constant":
            (array,) = evaluate_constant(node, arrays)
            if array.dtype.kind != "f":
                return (Constant(array),)
            origin = Origin(node.outputs[0], array.shape, literal=True)
            return (Constant(array, View.whole(origin)),)
        if first is not None and first.view is not None:
            if node.op_type in REARRANGERS:
                return (first.rearranged(rearranger(node, arrays[1:])),)
            if node.op_type == "Split":
                numbers = evaluate_constant(node, arrays)
                indices = evaluate_constant(node, [first.view.index, *arrays[1:]])
                return tuple(
                    Constant(array, replace(first.view, index=index))
                    for array, index in zip(numbers, indices, strict=True)
                )
        view = _scaled(node, inputs)
        if view is not None:
            return (view,)
        results = evaluate_constant(node, arrays)
        self._absorbed |= {
            item.view.origin.name for item in inputs if item is not None and item.view is not None
        }
        if not any(item is not None and item.is_parameter for item in inputs):
            return tuple(Constant(array) for array in results)
        return tuple(
            Constant(array, View.whole(Origin(name, array.shape, folded=True)))
            if array.dtype.kind == "f"
            else Constant(array)
            for name, array in zip(node.outputs, results, strict=False)
        )

    def _keep(self, node: RawNode) -> None:
        """A node that depends on the data."""
        refusal = refusal_of(node)
        if refusal is not None:
            self._lose(node, refusal)
            return
        for name in node.inputs:
            if name in self.values and self.values[name].dtype.kind != "f":
                self._refuse(node, "LC005", f"it reads the integers or truth values {name!r}")
                return
        outputs = self._infer(node)
        if outputs is None:
            return
        self.values.update(outputs)
        self._nodes.append(self._with_bindings(node))

    def _with_bindings(self, node: RawNode) -> RawNode:
        """Give tensors that the exporter renamed or shared the names of their parameters."""
        inputs = list(node.inputs)
        for position, target in self._provenance.bindings(node).items():
            name = node.input(position)
            constant = self.constants.get(name)
            if constant is None or constant.view is None or constant.view.origin.name == target:
                continue
            if target in self._provenance.stored or constant.view.scale != 1:
                continue
            array = constant.array
            if node.op_type == "MatMul":
                if array.ndim != 2:
                    continue
                view = View.whole(Origin(target, array.shape[::-1]))
                view = replace(view, index=view.index.T)
            else:
                view = View.whole(Origin(target, array.shape))
            inputs[position] = f"{name}@{target}"
            self.constants[inputs[position]] = Constant(array, view)
            self._bound.add(target)
        return replace(node, inputs=tuple(inputs))

    def _infer(self, node: RawNode) -> dict[str, Value] | None:
        """Shapes of the outputs, by the shape inference of onnx for this one node."""
        if (node.domain or node.op_type in _SHAPE_KEEPING) and node.inputs[0] in self.values:
            return {node.outputs[0]: self.values[node.inputs[0]]}
        types: dict[str, TypeProto] = {}
        data = {}
        for name in filter(None, node.inputs):
            constant = self.constants.get(name)
            value = self.values.get(name)
            if constant is not None:
                types[name] = _type(constant.shape, constant.array.dtype)
                if constant.array.size <= 64 and constant.array.dtype.kind in "iuf":
                    data[name] = numpy_helper.from_array(np.ascontiguousarray(constant.array), name)
            elif value is not None:
                types[name] = _type(value.shape, value.dtype)
        try:
            found = shape_inference.infer_node_outputs(
                defs.get_schema(node.op_type, max(self._opset, node.since_version), ""),
                helper.make_node(node.op_type, node.inputs, node.outputs, **node.attributes),
                types,
                data,
                opset_imports=self._opsets,
                ir_version=self._ir_version,
            )
        except Exception as error:  # noqa: BLE001  the C++ inference raises several kinds
            self._refuse(node, "LC008", f"its shapes do not fit: {_first_line(error)}")
            return None
        return self._checked(node, found)

    def _checked(self, node: RawNode, found: Mapping[str, TypeProto]) -> dict[str, Value] | None:
        outputs = {}
        for name in filter(None, node.outputs):
            shape = _static_shape(found.get(name))
            if shape is None:
                if name == node.outputs[0]:
                    self._refuse(node, "LC008", "the shape of its output depends on data")
                    return None
                self._unknown.add(name)
                continue
            if math.prod(shape) > MAX_VALUE_ELEMENTS or min(shape, default=1) < 1:
                self._refuse(node, "LC002", f"its output has the shape {shape}")
                return None
            reason = self._mismatch(node, shape)
            if reason:
                self._refuse(node, "LC008", reason)
                return None
            dtype = helper.tensor_dtype_to_np_dtype(found[name].tensor_type.elem_type)
            outputs[name] = Value(shape, np.dtype(dtype))
        return outputs

    def _mismatch(self, node: RawNode, shape: Shape) -> str:
        """What the shape inference of onnx does not check; "" where everything fits."""
        shapes = [
            self.values[name].shape if name in self.values else self.constants[name].shape
            for name in node.inputs[:2]
            if name
        ]
        if node.op_type == "Reshape" and math.prod(shapes[0]) != math.prod(shape):
            return f"{shapes[0]} cannot be reshaped to {shape}"
        if node.op_type == "Gemm":
            left, right = shapes
            rows = left[0 if node.integer("transA", 0) else 1]
            if rows != right[1 if node.integer("transB", 0) else 0]:
                return f"{left} cannot be multiplied by {right}"
        return ""


def _scaled(node: RawNode, inputs: Sequence[Constant | None]) -> Constant | None:
    """A parameter times one number, perhaps repeated, as a view; None for anything else."""
    operands = [item for item in inputs if item is not None]
    if not any(item.is_parameter for item in operands):
        return None
    if node.op_type in {"Neg", "Cast"}:
        return _recast(node, operands[0])
    if node.op_type not in {"Add", "Mul", "Div"} or len(operands) != 2:
        return None
    first, second = operands
    if second.is_parameter and node.op_type != "Div":
        first, second = second, first
    factor = second.uniform()
    if second.is_parameter or not first.is_parameter or factor is None:
        return None
    shape = np.broadcast_shapes(first.shape, second.shape)
    repeated = first.rearranged(lambda array: np.broadcast_to(array, shape))
    if node.op_type == "Add":
        return repeated if factor == 0.0 else None
    if factor == 0.0:
        return None
    exact = Fraction(factor)
    return _in_type(first, repeated.scaled(exact if node.op_type == "Mul" else 1 / exact))


def _in_type(source: Constant, result: Constant) -> Constant:
    """The result in the data type of the file, rounded as at run time."""
    return Constant(result.array.astype(source.array.dtype), result.view)


def _recast(node: RawNode, constant: Constant) -> Constant | None:
    if node.op_type == "Neg":
        return _in_type(constant, constant.scaled(Fraction(-1)))
    target = np.dtype(helper.tensor_dtype_to_np_dtype(node.integer("to", 1)))
    is_exact = target.kind == "f" and target.itemsize >= constant.array.dtype.itemsize
    return Constant(constant.array.astype(target), constant.view) if is_exact else None


def _type(shape: Shape, dtype: np.dtype[Any]) -> TypeProto:
    code = helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_type_proto(code, list(shape))


def _static_shape(found: TypeProto | None) -> Shape | None:
    if found is None or not found.tensor_type.HasField("shape"):
        return None
    dims = found.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
