"""From a path to a `Model`.

Refused, because the checker would have to interpret more than it can justify: sparse tensors,
training graphs, and whatever has two readings or none: names defined twice or never, cycles,
attributes with two values, unknown fields, two models in one file. Bodies of loops, tensors of text
and inputs that are not tensors of numbers are kept as they are: what depends on them is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError
from onnx.onnx_ml_pb2 import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)

from lipcert.core.reader.files import MAX_BYTES, Folder, read_model_bytes
from lipcert.core.reader.order import check_order
from lipcert.core.reader.records import (
    MAX_NODES,
    Attribute,
    AttributeValue,
    Branch,
    Function,
    Input,
    Loop,
    Model,
    ModelReadError,
    Node,
    Reference,
    Tensor,
    shown,
)
from lipcert.core.reader.tensors import DTYPES, MAX_RANK, UNREAD, read_tensor, unread_tensor
from lipcert.core.reader.wire import check_known, check_single_model, check_text

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
    AttributeProto.GRAPH: ("GRAPH", "g"),
}
_MAX_NESTING: Final = 20
"""of loops in each other"""
_LABELS: Final = frozenset({"name", "type", "doc_string"})


def read_model(path: Path) -> Model:
    """The model in a file, with the external data in its folder; `ModelReadError` otherwise."""
    return read_parsed(path)[0]


def read_parsed(path: Path) -> tuple[Model, ModelProto]:
    """Likewise, and the message that was parsed."""
    content = read_model_bytes(path)
    check_single_model(content)
    proto = ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        raise ModelReadError("this is not an ONNX model, or is truncated") from None
    check_text(proto)
    return _read(proto, content, Folder(path.parent, MAX_BYTES - len(content))), proto


def _read(proto: ModelProto, content: bytes, folder: Folder) -> Model:
    check_known(proto)
    if proto.ir_version not in _IR_VERSIONS:
        raise ModelReadError(f"the format version {proto.ir_version} is not known")
    if len(proto.training_info):
        raise ModelReadError("the model has a training graph; export it for inference", "LC011")
    graph = proto.graph
    check_known(graph)
    if len(graph.sparse_initializer):
        raise ModelReadError("the model has sparse tensors; export dense ones", "LC003")
    if max(len(graph.node), len(graph.initializer), len(graph.input)) > MAX_NODES:
        reason = f"the model has more than {MAX_NODES} nodes, initializers or inputs"
        raise ModelReadError(reason, "LC002")
    initializers = dict(_initializers(graph, folder))
    declared = [_input(info) for info in graph.input]
    _once((item.name for item in declared), "graph input")
    outputs = tuple(info.name for info in graph.output)
    _once(outputs, "graph output")
    opset = _opset(proto)
    functions = dict(_functions(proto, opset, folder))
    given = {*initializers, *(item.name for item in declared)}
    nodes = tuple(_node(node, folder) for node in graph.node)
    if functions or any(_holds_another(node) for node in nodes):
        from lipcert.core.reader.inlining import Inliner  # noqa: PLC0415  for such models only

        inliner = Inliner(functions, given.union(outputs, *(node.outputs for node in nodes)))
        nodes = tuple(inliner.nodes(nodes, {}))
        initializers |= inliner.initializers
        given |= set(inliner.initializers)
    check_order(nodes, given, outputs)
    return Model(
        ir_version=proto.ir_version,
        opset=opset,
        inputs=tuple(item for item in declared if item.name not in initializers),
        initializers=initializers,
        overridable=tuple(item.name for item in declared if item.name in initializers),
        nodes=nodes,
        outputs=outputs,
        stated=tuple(_stated(graph)),
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        external=folder.files(),
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        metadata=_metadata(graph),
        value_metadata={item.name: _metadata(item) for item in graph.value_info},
    )


def _metadata(message: GraphProto | NodeProto | ValueInfoProto) -> dict[str, str]:
    return {item.key: item.value for item in message.metadata_props}


def _holds_another(node: Node) -> bool:
    """Whether an attribute is a graph, or stands for another attribute."""
    return any(isinstance(item.value, Branch | Reference) for item in node.attributes.values())


def _opset(proto: ModelProto | FunctionProto) -> dict[str, int]:
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = _domain(entry.domain)
        if versions.get(domain, entry.version) != entry.version:
            raise ModelReadError(
                f"the model imports two versions of the operator set {shown(domain)}"
            )
        if not 1 <= entry.version < 1 << 31:
            raise ModelReadError(f"the operator set {shown(domain)} is impossible", "LC003")
        versions[domain] = entry.version
    return versions


def _domain(name: str) -> str:
    """The standard domain has two spellings."""
    return "" if name == "ai.onnx" else name


def _functions(
    proto: ModelProto, opset: dict[str, int], folder: Folder
) -> Iterator[tuple[tuple[str, str], Function]]:
    """Model-local functions by domain and name, in the operator sets of the model."""
    keys = [(_domain(item.domain), item.name) for item in proto.functions]
    if len(set(keys)) < len(keys) or sum(len(f.node) for f in proto.functions) > MAX_NODES:
        raise ModelReadError("a local function is defined twice, or there are too many nodes")
    for key, item in zip(keys, proto.functions, strict=True):
        try:
            yield key, _function(item, opset, folder)
        except ModelReadError as error:
            raise error.at(f"the local function {shown(item.name)}", "LC001") from None


def _function(proto: FunctionProto, opset: dict[str, int], folder: Folder) -> Function:
    check_known(proto)
    if not _domain(proto.domain) or proto.overload:
        raise ModelReadError("it replaces a standard operator, or is a variant of a function")
    for domain, version in _opset(proto).items():
        if opset.get(domain, version if domain else 0) != version:
            raise ModelReadError("its operator set is not that of the model")
    _once(proto.input, "input")
    _once(proto.output, "output")
    defaults = dict.fromkeys(proto.attribute) | {
        item.name: _attribute(item, folder) for item in proto.attribute_proto
    }
    _once([*proto.attribute, *(item.name for item in proto.attribute_proto)], "attribute")
    nodes = tuple(_node(node, folder) for node in proto.node)
    return Function(tuple(proto.input), tuple(proto.output), defaults, nodes)


def _initializers(graph: GraphProto, folder: Folder) -> Iterator[tuple[str, Tensor]]:
    _once((tensor.name for tensor in graph.initializer), "initializer", "LC016")
    for tensor in graph.initializer:
        yield tensor.name, _tensor(tensor, folder)


def _tensor(proto: TensorProto, folder: Folder) -> Tensor:
    check_known(proto)
    return unread_tensor(proto) if proto.data_type in UNREAD else read_tensor(proto, folder)


def _once(names: Iterable[str], what: str, code: str = "LC001") -> None:
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            raise ModelReadError(f"the {what} {shown(name)} has no name or occurs twice", code)
        seen.add(name)


def _input(info: ValueInfoProto) -> Input:
    check_known(info)
    check_known(info.type)
    if info.type.WhichOneof("value") != "tensor_type":
        return Input(info.name, f"unread {info.type.WhichOneof('value')}", None)
    tensor = info.type.tensor_type
    check_known(tensor)
    dtype = DTYPES.get(tensor.elem_type, f"unread {tensor.elem_type}")
    if not tensor.HasField("shape"):
        return Input(info.name, dtype, None)
    for message in (tensor.shape, *tensor.shape.dim):
        check_known(message)
    dims = [
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else dim.dim_param
        for dim in tensor.shape.dim
    ]
    if dims[:1] == [-1]:  # as PaddlePaddle writes a batch of any size
        dims[0] = ""
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
        if not any(proto.output):
            raise ModelReadError("it has no output", "LC001")
        attributes = {
            item.name: _body(item)
            if item.type == AttributeProto.GRAPH and proto.op_type != "If"
            else _attribute(item, folder)
            for item in proto.attribute
        }
    except ModelReadError as error:
        where = f"node {shown(proto.name)} ({shown(proto.op_type)})"
        raise error.at(where, "LC016") from None
    return Node(
        name=proto.name,
        op_type=proto.op_type,
        domain=_domain(proto.domain),
        inputs=(*proto.input, *_read_inside(proto)),
        outputs=tuple(proto.output),
        attributes=attributes,
        metadata=_metadata(proto),
    )


def _body(proto: AttributeProto) -> Attribute:
    return Attribute("GRAPH", Loop(proto.g.SerializeToString(deterministic=True)))


def _read_inside(proto: NodeProto) -> Iterator[str]:
    """What the body of a loop reads from around it."""
    if proto.op_type != "If":
        names = (name for item in proto.attribute for name in _free_names(item.g, _MAX_NESTING))
        yield from dict.fromkeys(names)


def _free_names(graph: GraphProto, depth: int) -> Iterator[str]:
    if depth == 0:
        raise ModelReadError("loops are nested too deeply")
    inside = [(*node.input, *_names_inside(node, depth)) for node in graph.node]
    made = {item.name for item in (*graph.input, *graph.initializer)}
    made.update(name for node in graph.node for name in node.output)
    read = (*(name for names in inside for name in names), *(item.name for item in graph.output))
    yield from (name for name in read if name and name not in made)


def _names_inside(proto: NodeProto, depth: int) -> Iterator[str]:
    for item in proto.attribute:
        yield from _free_names(item.g, depth - 1)


def _attribute(proto: AttributeProto, folder: Folder) -> Attribute:
    check_known(proto)
    if proto.type not in _FIELDS:
        raise ModelReadError(f"the attribute {shown(proto.name)} has a kind that is not read")
    kind, field = _FIELDS[proto.type]
    own = "ref_attr_name" if proto.ref_attr_name else field
    others = {descriptor.name for descriptor, _ in proto.ListFields()} - _LABELS - {own}
    if others:
        raise ModelReadError(f"the attribute {shown(proto.name)} has more than one value")
    stored = getattr(proto, field)
    value: AttributeValue
    if proto.ref_attr_name:
        value = Reference(proto.ref_attr_name)
    elif kind == "TENSOR":
        value = _tensor(stored, folder)
    elif kind == "GRAPH":
        value = _branch(stored, folder)
    elif kind.endswith("S"):
        value = tuple(stored)
    else:
        value = stored
    return Attribute(kind, value)


def _branch(graph: GraphProto, folder: Folder) -> Branch:
    check_known(graph)
    if len(graph.input) or len(graph.sparse_initializer):
        raise ModelReadError("a branch has inputs or sparse tensors")
    outputs = tuple(info.name for info in graph.output)
    initializers = dict(_initializers(graph, folder))
    return Branch(tuple(_node(node, folder) for node in graph.node), outputs, initializers)
