"""From bytes to a raw model: parse, check the structure, expand model-local functions.

What enters: the bytes of one ModelProto. What leaves: a `Source`: the raw model and, for running
it with onnxruntime, the expanded protobuf. Invariants: every value is computed once and before it
is read; every tensor is finite, complete and inside the file; sizes are below `limits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    defs,
    helper,
)

from lipcert.errors import ModelFileError, Refusal, UnsupportedModelError
from lipcert.importer.container import read_bytes
from lipcert.importer.limits import MAX_NODES
from lipcert.importer.raw import RawGraph, RawInput, RawModel, RawNode
from lipcert.importer.tensors import read_tensor

__all__ = ["Source", "open_model"]

_MAX_DEPTH: Final = 20
_MAX_NESTING: Final = 200
_Key = tuple[str, str, str]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A checked model, as raw data and as the protobuf it was made from."""

    model: RawModel
    proto: ModelProto


def open_model(path: Path) -> Source:
    """Read and check a model file."""
    raw = read_bytes(path)
    proto = ModelProto()
    try:
        proto.ParseFromString(raw.content)
    except DecodeError as error:
        raise _malformed(path, "is not an ONNX model, or is truncated") from error
    if not _is_text(proto):
        raise _malformed(path, "has a name that is not UTF-8")
    _check_versions(path, proto)
    _check_size(path, proto)
    proto = _expanded(path, proto)
    opset = {item.domain or "ai.onnx": item.version for item in proto.opset_import}
    refusals: list[Refusal] = []
    graph = _Reader(path, opset, refusals).graph(proto.graph, frozenset())
    if refusals:
        raise UnsupportedModelError(tuple(refusals))
    if not graph.outputs:
        raise _malformed(path, "has no output")
    producer = f"{proto.producer_name} {proto.producer_version}".strip()
    model = RawModel(graph, opset, proto.ir_version, producer, str(path), raw.sha256)
    return Source(model, proto)


def _malformed(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"[LC001] {str(path)!r} {why}")


def _listed(value: Any) -> Iterable[Any]:
    """The items of a repeated field, or the one value of a singular field."""
    return [value] if isinstance(value, str | bytes | Message) else value


def _is_text(message: Message) -> bool:
    """Whether every string of a message is one; protobuf yields bytes where it is not UTF-8."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE and not all(map(_is_text, _listed(value))):
            return False
        if field.type == FieldDescriptor.TYPE_STRING and any(
            isinstance(item, bytes) for item in _listed(value)
        ):
            return False
    return True


def _check_versions(path: Path, proto: ModelProto) -> None:
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        raise _malformed(
            path, f"has IR version {proto.ir_version}; up to {onnx.IR_VERSION} is supported"
        )
    if proto.training_info:
        reason = "the file holds a training algorithm"
        raise UnsupportedModelError((Refusal("LC011", "", "", reason, "export for inference"),))
    versions = {(item.domain or "ai.onnx", item.version) for item in proto.opset_import}
    if len({domain for domain, _ in versions}) < len(versions):
        raise _malformed(path, "imports two versions of one operator set")
    newest = defs.onnx_opset_version()
    for item in proto.opset_import:
        if item.domain in {"", "ai.onnx"} and not 1 <= item.version <= newest:
            reason = f"operator set {item.version} is not known (up to {newest})"
            remedy = "export with an older opset_version"
            raise UnsupportedModelError((Refusal("LC003", "", "", reason, remedy),))


def _check_size(path: Path, proto: ModelProto) -> None:
    """Count the nodes after expansion of functions, without expanding anything."""
    bodies = {_key(function): function.node for function in proto.functions}
    if len(bodies) < len(proto.functions):
        raise _malformed(path, "defines a model-local function twice")
    counts: dict[_Key, int] = {}
    active: set[_Key] = set()

    def count(nodes: Iterable[NodeProto], depth: int) -> int:
        if depth > _MAX_NESTING:
            raise _malformed(path, "nests functions or sub-graphs too deeply")
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += count_body(key, depth) if key in bodies else 1
            total += sum(count(body.node, depth + 1) for body in _subgraphs(node))
        return total

    def count_body(key: _Key, depth: int) -> int:
        if key in active:
            raise _malformed(path, f"defines the function {key[1]!r} by itself")
        if key not in counts:
            active.add(key)
            counts[key] = count(bodies[key], depth + 1)
            active.remove(key)
        return counts[key]

    if count(proto.graph.node, 0) > MAX_NODES:
        raise ModelFileError(
            f"[LC002] {str(path)!r} has more than {MAX_NODES} nodes after function expansion"
        )


def _key(function: FunctionProto) -> _Key:
    return function.domain, function.name, function.overload


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _expanded(path: Path, proto: ModelProto) -> ModelProto:
    if not proto.functions:
        return proto
    try:
        return onnx.inliner.inline_local_functions(proto)
    except Exception as error:
        raise _malformed(path, "has model-local functions that cannot be expanded") from error


@final
class _Reader:
    """Turns GraphProtos into RawGraphs, collecting refusals."""

    def __init__(self, path: Path, opset: Mapping[str, int], refusals: list[Refusal]) -> None:
        self._path = path
        self._opset = opset
        self._refusals = refusals

    def graph(self, proto: GraphProto, outer: frozenset[str], depth: int = 0) -> RawGraph:
        """Read a graph whose nodes may also read the values of `outer`."""
        if depth > _MAX_DEPTH:
            raise _malformed(self._path, "nests sub-graphs too deeply")
        tensors = self._tensors(proto)
        declared = [item.name for item in proto.input]
        known = set(outer) | set(tensors) | set(declared)
        own = set(tensors) | set(declared)
        if len(set(declared)) < len(declared):
            raise _malformed(self._path, "declares one input twice")
        nodes = []
        for node in proto.node:
            self._check_names(node, known, own)
            nodes.append(self._node(node, frozenset(known), depth))
            produced = {name for name in node.output if name}
            known |= produced
            own |= produced
        for output in proto.output:
            if output.name not in known:
                raise _malformed(self._path, f"never computes its output {output.name!r}")
        return RawGraph(
            tuple(nodes),
            tensors,
            tuple(_input(item) for item in proto.input if item.name not in tensors),
            tuple(item.name for item in proto.output),
            {item.key: item.value for item in proto.metadata_props},
            tuple(name for name in declared if name in tensors),
        )

    def _tensors(self, proto: GraphProto) -> dict[str, np.ndarray[Any, Any]]:
        tensors: dict[str, np.ndarray[Any, Any]] = {}
        if proto.sparse_initializer:
            self._refusals.append(
                Refusal("LC003", "", "", "sparse initializers are not supported", "export dense")
            )
        for tensor in proto.initializer:
            if tensor.name in tensors:
                reason = f"the initializer {tensor.name!r} is defined twice"
                self._refusals.append(Refusal("LC016", "", "", reason))
                continue
            content = read_tensor(tensor, f"initializer {tensor.name!r}", self._refusals)
            tensors[tensor.name] = np.zeros(0) if content is None else content
        return tensors

    def _check_names(self, node: NodeProto, known: set[str], own: set[str]) -> None:
        for name in node.input:
            if name and name not in known:
                raise _malformed(
                    self._path,
                    f"has a node {node.name!r} ({node.op_type!r}) that reads {name!r} before it is"
                    " computed (a cycle, a missing value or unsorted nodes)",
                )
        outputs = [name for name in node.output if name]
        for name in outputs:
            if name in own or outputs.count(name) > 1:
                raise _malformed(self._path, f"computes the value {name!r} twice")
        if not outputs:
            raise _malformed(self._path, f"has a node {node.name!r} without outputs")

    def _node(self, node: NodeProto, known: frozenset[str], depth: int) -> RawNode:
        domain = "" if node.domain == "ai.onnx" else node.domain
        attributes: dict[str, Any] = {}
        label = node.name or f"{node.op_type}_{next(name for name in node.output if name)}"
        for attribute in node.attribute:
            if attribute.name in attributes:
                raise _malformed(self._path, f"has a node {label!r} with an attribute given twice")
            attributes[attribute.name] = self._attribute(attribute, label, known, depth)
        return RawNode(
            node.op_type,
            domain,
            self._since_version(node.op_type, domain),
            label,
            tuple(node.input),
            tuple(node.output),
            attributes,
            {item.key: item.value for item in node.metadata_props},
        )

    def _since_version(self, op_type: str, domain: str) -> int:
        version = self._opset.get(domain or "ai.onnx")
        if version is None or domain:
            return 0
        try:
            return defs.get_schema(op_type, version, domain).since_version
        except defs.SchemaError:  # onnxruntime knows LayerNormalization in every operator set
            return 17 if op_type == "LayerNormalization" else 0

    def _attribute(
        self, attribute: AttributeProto, label: str, known: frozenset[str], depth: int
    ) -> object:
        match attribute.type:
            case AttributeProto.TENSOR:
                where = f"attribute {attribute.name!r} of node {label!r}"
                content = read_tensor(attribute.t, where, self._refusals)
                return np.zeros(0) if content is None else content
            case AttributeProto.GRAPH:
                return self.graph(attribute.g, known, depth + 1)
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
