"""From a parsed graph to a raw one, checked against the definition of the format.

What enters: a GraphProto without calls of local functions. What leaves: a `RawGraph`. Invariants:
every value is computed once and before it is read; every tensor is finite and complete; a node
of a standard operator has as many inputs and outputs, and attributes of the types, as it should.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, defs, helper

from lipcert.errors import ModelFileError, Refusal
from lipcert.importer.operators import refusal_of
from lipcert.importer.raw import Array, RawGraph, RawInput, RawNode
from lipcert.importer.tensors import read_tensor

_MAX_DEPTH: Final = 20
_FOLDED: Final = "pkg.onnxscript.optimizer.folded_from"
_NAME: Final = re.compile(r"'([^']*)'")
_Scopes = tuple[set[str], ...]
"""names that are defined so far: in this graph, then in those around it"""


@final
class GraphReader:
    """Turns GraphProtos into RawGraphs, collecting refusals.

    faults: those of stored tensors, by the values that hold them.
    """

    def __init__(self, path: Path, opset: Mapping[str, int], refusals: list[Refusal]) -> None:
        self.faults: dict[str, Refusal] = {}
        self._path = path
        self._opset = opset
        self._refusals = refusals

    def graph(self, proto: GraphProto, outer: _Scopes = ()) -> RawGraph:
        """Read a graph whose nodes may also read the values of `outer`."""
        if len(outer) > _MAX_DEPTH:
            raise _malformed(self._path, "nests sub-graphs too deeply")
        tensors = self._tensors(proto)
        declared = [item.name for item in proto.input]
        if len(set(declared)) < len(declared):
            raise _malformed(self._path, "declares one input twice")
        own = set(tensors) | set(declared)
        scopes = (own, *outer)
        nodes = []
        for node in proto.node:
            self._check_names(node, scopes)
            nodes.append(self._node(node, scopes))
            own.update(name for name in node.output if name)
        results = [item.name for item in proto.output]
        if len(set(results)) < len(results):
            raise _malformed(self._path, "declares one output twice")
        for name in results:
            if not _is_defined(name, scopes):
                raise _malformed(self._path, f"never computes its output {name!r}")
        return RawGraph(
            tuple(nodes),
            tensors,
            tuple(_input(item) for item in proto.input if item.name not in tensors),
            tuple(results),
            {item.key: item.value for item in proto.metadata_props},
            tuple(name for name in declared if name in tensors),
            self.faults,
            {
                item.name: frozenset(_NAME.findall(note.value))
                for item in proto.value_info
                for note in item.metadata_props
                if note.key == _FOLDED
            },
        )

    def _tensors(self, proto: GraphProto) -> dict[str, Array]:
        tensors: dict[str, Array] = {}
        if proto.sparse_initializer:
            self._refusals.append(
                Refusal("LC003", "", "", "sparse initializers are not supported", "export dense")
            )
        for tensor in proto.initializer:
            if tensor.name in tensors:
                reason = f"the initializer {tensor.name!r} is defined twice"
                self._refusals.append(Refusal("LC016", "", "", reason))
                continue
            where = f"initializer {tensor.name!r}"
            tensors[tensor.name] = self._read(tensor, where, [tensor.name])
        return tensors

    def _check_names(self, node: NodeProto, scopes: _Scopes) -> None:
        for name in node.input:
            if name and not _is_defined(name, scopes):
                raise _malformed(
                    self._path,
                    f"has a node {node.name!r} ({node.op_type!r}) that reads {name!r} before it is"
                    " computed (a cycle, a missing value or unsorted nodes)",
                )
        outputs = [name for name in node.output if name]
        for name in outputs:
            if name in scopes[0]:
                raise _malformed(self._path, f"computes the value {name!r} twice")
        if len(set(outputs)) < len(outputs):
            raise _malformed(self._path, f"has a node {node.name!r} that names an output twice")
        if not outputs:
            raise _malformed(self._path, f"has a node {node.name!r} without outputs")

    def _node(self, node: NodeProto, scopes: _Scopes) -> RawNode:
        domain = "" if node.domain == "ai.onnx" else node.domain
        attributes: dict[str, Any] = {}
        label = node.name or f"{node.op_type}_{next(name for name in node.output if name)}"
        for attribute in node.attribute:
            if attribute.name in attributes:
                raise _malformed(self._path, f"has a node {label!r} with an attribute given twice")
            attributes[attribute.name] = self._attribute(attribute, label, node.output, scopes)
        schema = self._schema(node.op_type, domain)
        raw = RawNode(
            node.op_type,
            domain,
            label,
            tuple(node.input),
            tuple(node.output),
            attributes,
            {item.key: item.value for item in node.metadata_props},
        )
        fault = "" if schema is None else _fault(node, schema)
        if fault:
            malformed = Refusal("LC016", label, node.op_type, fault)
            self._refusals.append(refusal_of(raw) or malformed)
        return raw

    def _schema(self, op_type: str, domain: str) -> defs.OpSchema | None:
        """The definition of a standard operator in the operator set of the file."""
        version = self._opset.get("ai.onnx")
        if version is None or domain:
            return None
        try:
            return defs.get_schema(op_type, version, domain)
        except defs.SchemaError:
            return None

    def _read(self, tensor: TensorProto, where: str, values: Iterable[str]) -> Array:
        """The numbers of a tensor, or none where these values have a fault."""
        found: list[Refusal] = []
        content = read_tensor(tensor, where, found)
        self.faults.update((name, refusal) for name in values for refusal in found)
        return np.zeros(0) if content is None else content

    def _attribute(
        self, attribute: AttributeProto, label: str, outputs: Iterable[str], scopes: _Scopes
    ) -> object:
        match attribute.type:
            case AttributeProto.TENSOR:
                where = f"attribute {attribute.name!r} of node {label!r}"
                return self._read(attribute.t, where, outputs)
            case AttributeProto.GRAPH:
                return self.graph(attribute.g, scopes)
            case AttributeProto.STRING:
                return attribute.s.decode("utf-8", "replace")
            case AttributeProto.STRINGS:
                return tuple(item.decode("utf-8", "replace") for item in attribute.strings)
            case AttributeProto.INT:
                return attribute.i
            case AttributeProto.FLOAT:
                return attribute.f
            case AttributeProto.INTS:
                return tuple(attribute.ints)
            case AttributeProto.FLOATS:
                return tuple(attribute.floats)
        reason = f"the attribute {attribute.name!r} has an unsupported type"
        self._refusals.append(Refusal("LC016", label, "", reason))
        return 0


def _fault(node: NodeProto, schema: defs.OpSchema) -> str:
    """How a node contradicts the definition of its operator; "" where it does not."""
    single = defs.OpSchema.FormalParameterOption.Single
    required = [item for item in schema.inputs if item.option == single]
    given = list(node.input[: len(required)])
    if len(given) < len(required) or not all(given):
        return "a required input is missing"
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return f"it has {len(node.input)} inputs"
    if not schema.min_output <= len(node.output) <= schema.max_output or not node.output[0]:
        return f"it has {len(node.output)} outputs, or no first one"
    types = {attribute.name: attribute.type for attribute in node.attribute}
    for name, definition in schema.attributes.items():
        if name in types and types[name] != definition.type:
            return f"the attribute {name!r} has the wrong type"
        if name not in types and definition.required:
            return f"the attribute {name!r} is missing"
    return ""


def _is_defined(name: str, scopes: _Scopes) -> bool:
    return any(name in scope for scope in scopes)


def _input(item: onnx.ValueInfoProto) -> RawInput:
    if not item.type.HasField("tensor_type"):
        return RawInput(item.name, None, None)
    tensor = item.type.tensor_type
    return RawInput(item.name, _dtype(tensor.elem_type), _dims(tensor))


def _dtype(code: int) -> np.dtype[Any] | None:
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except (KeyError, TypeError, ValueError):
        return None


def _dims(tensor: TypeProto.Tensor) -> tuple[int | str, ...] | None:
    if not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param
        for dim in tensor.shape.dim
    )


def _malformed(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{str(path)!r} {why}")
