"""From a path to a `Model`.

Refused, because the checker would have to interpret more than it can justify: subgraphs (control
flow), model-local functions, sparse tensors, training graphs, inputs that are no tensors, and
whatever has two readings or none: names defined twice or never, cycles, attributes with two
values, unknown fields, two models in one file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError
from onnx.onnx_ml_pb2 import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from lipcert.core.reader.files import MAX_BYTES, Folder, read_model_bytes
from lipcert.core.reader.order import ordered
from lipcert.core.reader.records import (
    Attribute,
    AttributeValue,
    Input,
    Model,
    ModelReadError,
    Node,
    Tensor,
    shown,
)
from lipcert.core.reader.tensors import DTYPES, MAX_RANK, read_tensor
from lipcert.core.reader.wire import check_known, check_single_model

MAX_NODES: Final = 50_000
"""nodes of a graph, and also initializers and inputs"""
_MAX_DIM: Final = 1 << 31
_IR_VERSIONS: Final = range(3, 14)
_FIELDS: Final = {
    AttributeProto.FLOAT: ("FLOAT", "f"),
    AttributeProto.INT: ("INT", "i"),
    AttributeProto.STRING: ("STRING", "s"),
    AttributeProto.TENSOR: ("TENSOR", "t"),
    AttributeProto.FLOATS: ("FLOATS", "floats"),
    AttributeProto.INTS: ("INTS", "ints"),
    AttributeProto.STRINGS: ("STRINGS", "strings"),
}
_LABELS: Final = frozenset({"name", "type", "doc_string"})


def read_model(path: Path) -> Model:
    """The model in a file, with the external data in its folder; `ModelReadError` otherwise."""
    content = read_model_bytes(path)
    check_single_model(content)
    proto = ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        raise ModelReadError("this is not an ONNX model, or is truncated") from None
    return _read(proto, content, Folder(path.parent, MAX_BYTES - len(content)))


def _read(proto: ModelProto, content: bytes, folder: Folder) -> Model:
    check_known(proto)
    if proto.ir_version not in _IR_VERSIONS:
        raise ModelReadError(f"the format version {proto.ir_version} is not known")
    if len(proto.functions) or len(proto.training_info):
        raise ModelReadError("the model has local functions or a training graph")
    graph = proto.graph
    check_known(graph)
    if len(graph.sparse_initializer):
        raise ModelReadError("the model has sparse tensors")
    if max(len(graph.node), len(graph.initializer), len(graph.input)) > MAX_NODES:
        raise ModelReadError(f"the model has more than {MAX_NODES} nodes, initializers or inputs")
    initializers = dict(_initializers(graph, folder))
    declared = [_input(info) for info in graph.input]
    _once((item.name for item in declared), "graph input")
    outputs = tuple(info.name for info in graph.output)
    _once(outputs, "graph output")
    nodes = tuple(_node(node, folder) for node in graph.node)
    given = {*initializers, *(item.name for item in declared)}
    return Model(
        ir_version=proto.ir_version,
        opset=_opset(proto),
        inputs=tuple(item for item in declared if item.name not in initializers),
        initializers=initializers,
        overridable=tuple(item.name for item in declared if item.name in initializers),
        nodes=ordered(nodes, given, outputs),
        outputs=outputs,
        stated=tuple(_stated(graph)),
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        external=folder.files(),
    )


def _opset(proto: ModelProto) -> dict[str, int]:
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = _domain(entry.domain)
        if not 1 <= entry.version == versions.get(domain, entry.version) < 1 << 31:
            raise ModelReadError(f"the operator set {shown(domain)} is given twice or impossible")
        versions[domain] = entry.version
    return versions


def _domain(name: str) -> str:
    """The standard domain has two spellings."""
    return "" if name == "ai.onnx" else name


def _initializers(graph: GraphProto, folder: Folder) -> Iterator[tuple[str, Tensor]]:
    _once((tensor.name for tensor in graph.initializer), "initializer")
    for tensor in graph.initializer:
        check_known(tensor)
        yield tensor.name, read_tensor(tensor, folder)


def _once(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            raise ModelReadError(f"the {what} {shown(name)} has no name or occurs twice")
        seen.add(name)


def _input(info: ValueInfoProto) -> Input:
    check_known(info)
    check_known(info.type)
    if info.type.WhichOneof("value") != "tensor_type":
        raise ModelReadError(f"the graph input {shown(info.name)} is not a tensor")
    tensor = info.type.tensor_type
    check_known(tensor)
    dtype = DTYPES.get(tensor.elem_type)
    if dtype is None:
        raise ModelReadError(f"the graph input {shown(info.name)} is not of a plain number type")
    if not tensor.HasField("shape"):
        return Input(info.name, dtype, None)
    for message in (tensor.shape, *tensor.shape.dim):
        check_known(message)
    dims = [
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else dim.dim_param
        for dim in tensor.shape.dim
    ]
    if len(dims) > MAX_RANK or any(
        isinstance(dim, int) and not 0 <= dim < _MAX_DIM for dim in dims
    ):
        raise ModelReadError(f"the shape of the graph input {shown(info.name)} is impossible")
    return Input(info.name, dtype, tuple(dims))


def _stated(graph: GraphProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shapes of results that the file states; a symbol may stand for any number."""
    for info in (*graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if info.type.WhichOneof("value") == "tensor_type" and tensor.HasField("shape"):
            dims = (
                dim.dim_value if dim.WhichOneof("value") == "dim_value" else -1
                for dim in tensor.shape.dim
            )
            yield info.name, tuple(dims)


def _node(proto: NodeProto, folder: Folder) -> Node:
    try:
        check_known(proto)
        _once((item.name for item in proto.attribute), "attribute")
        if proto.overload:
            raise ModelReadError("it calls a variant of a function")
        attributes = {item.name: _attribute(item, folder) for item in proto.attribute}
    except ModelReadError as error:
        where = f"node {shown(proto.name)} ({shown(proto.op_type)})"
        raise ModelReadError(f"{where}: {error}") from None
    return Node(
        name=proto.name,
        op_type=proto.op_type,
        domain=_domain(proto.domain),
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes=attributes,
    )


def _attribute(proto: AttributeProto, folder: Folder) -> Attribute:
    check_known(proto)
    if proto.type not in _FIELDS:
        raise ModelReadError(f"the attribute {shown(proto.name)} has a kind that is not read")
    kind, field = _FIELDS[proto.type]
    others = {descriptor.name for descriptor, _ in proto.ListFields()} - _LABELS - {field}
    if others:
        raise ModelReadError(f"the attribute {shown(proto.name)} has more than one value")
    stored = getattr(proto, field)
    value: AttributeValue
    if kind == "TENSOR":
        check_known(stored)
        value = read_tensor(stored, folder)
    elif kind.endswith("S"):
        value = tuple(stored)
    else:
        value = stored
    return Attribute(kind, value)
