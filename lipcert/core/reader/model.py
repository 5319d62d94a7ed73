"""Read an ONNX file into a `Model`: first the bytes, then the message, then its graph.

The reader refuses what the checker could not justify: sparse tensors, training graphs, and anything
with two readings or none (names defined twice or never, cycles, attributes with two values, unknown
fields, two models in one file). It keeps bodies of loops, tensors of text and inputs that are not
tensors of numbers as they are; what depends on them is refused later.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx.onnx_ml_pb2 import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    ValueInfoProto,
)

from lipcert.core.reader import MAX_BYTES, Folder, read_model_bytes
from lipcert.core.reader.records import (
    MAX_NODES,
    Attribute,
    AttributeValue,
    Branch,
    Input,
    Loop,
    Model,
    ModelReadError,
    Node,
    Reference,
    Tensor,
    shown,
)
from lipcert.core.reader.tensors import DTYPES, MAX_RANK, read_tensor

_IR_VERSIONS: Final = range(3, 14)
_MAX_DIM: Final = 1 << 31
_FIELDS: Final = {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g"} | {
    kind: kind.lower() for kind in ("FLOATS", "INTS", "STRINGS")
}
"""The field that holds the value of an attribute, for each kind of attribute."""
_LABELS: Final = frozenset({"name", "type", "doc_string"})
_MEMBERS: Final = ModelProto.DESCRIPTOR.fields_by_number


def read_model(path: Path) -> Model:
    """Return the model in a file, with its external data; raise `ModelReadError` to refuse it."""
    return read_parsed(path)[0]


def read_parsed(path: Path) -> tuple[Model, ModelProto]:
    """Return the model as `read_model` does, and the protobuf message that was parsed."""
    content = read_model_bytes(path)
    try:
        check_single_model(content)
        proto = ModelProto.FromString(content)
    except DecodeError:
        raise ModelReadError("this is not an ONNX model, or is truncated") from None
    check_fields(proto)
    return _read(proto, content, Folder(path.parent, MAX_BYTES - len(content))), proto


def _read(proto: ModelProto, content: bytes, folder: Folder) -> Model:
    if proto.ir_version not in _IR_VERSIONS:
        raise ModelReadError(f"the format version {proto.ir_version} is not known")
    if len(proto.training_info):
        raise ModelReadError("the model has a training graph; export it for inference", "LC011")
    graph = proto.graph
    if len(graph.sparse_initializer):
        raise ModelReadError("the model has sparse tensors; export dense ones", "LC003")
    if max(len(graph.node), len(graph.initializer), len(graph.input)) > MAX_NODES:
        reason = f"the model has more than {MAX_NODES} nodes, initializers or inputs"
        raise ModelReadError(reason, "LC002")
    initializers = dict(read_initializers(graph, folder))
    declared = [read_input(info) for info in graph.input]
    check_once((item.name for item in declared), "graph input")
    outputs = tuple(info.name for info in graph.output)
    check_once(outputs, "graph output")
    nodes = tuple(read_node(node, folder) for node in graph.node)
    values = (item.value for node in nodes for item in node.attributes.values())
    is_nested = any(isinstance(value, Branch | Reference) for value in values)
    if is_nested or len(proto.functions) or any(node.domain == "ai.onnx.ml" for node in nodes):
        from lipcert.core.reader.inlining import resolved  # noqa: PLC0415  for such models only

        nodes, initializers = resolved(proto, nodes, initializers, folder)
    given = {*initializers, *(item.name for item in declared)}
    check_order(nodes, given, outputs)
    inputs = tuple(item for item in declared if item.name not in initializers)
    if any(isinstance(size, str) for item in inputs for size in (item.dims or ())[1:]):
        from lipcert.core.reader.scores import with_width  # noqa: PLC0415  for such models only

        inputs = tuple(with_width(item, nodes, initializers) for item in inputs)
    return Model(
        opset=operator_sets(proto),
        inputs=inputs,
        initializers=initializers,
        overridable=tuple(item.name for item in declared if item.name in initializers),
        nodes=nodes,
        outputs=outputs,
        stated=tuple(stated_shapes(graph)),
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        external=folder.files(),
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        metadata=noted(graph),
        value_metadata={item.name: noted(item) for item in graph.value_info},
    )


def check_single_model(content: bytes) -> None:
    """Raise `ModelReadError` unless the bytes are the fields of one ModelProto with a graph.

    Raise `DecodeError` if they cannot be parsed.
    """
    seen: set[int] = set()
    fields = UnknownFieldSet(Empty.FromString(content))  # Empty: all are unknown, in order
    for field in (item.field_number for item in fields):
        if field not in _MEMBERS:
            raise ModelReadError(f"this is not an ONNX model (field {field} is not known)")
        if field in seen and not _MEMBERS[field].is_repeated:
            raise ModelReadError("the file holds several models one after another")
        seen.add(field)
    if ModelProto.GRAPH_FIELD_NUMBER not in seen:
        raise ModelReadError("this is not an ONNX model: it holds no graph")


def check_fields(message: Message) -> None:
    """Raise `ModelReadError` unless every field is known, and every string is UTF-8.

    protobuf keeps unknown fields, so two programs might read different models in the same bytes;
    and it returns bytes for strings that are not UTF-8.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        kind = message.DESCRIPTOR.name
        raise ModelReadError(f"a {kind} has a field {unknown[0].field_number} that is not known")
    for field, value in message.ListFields():
        items = value if field.is_repeated else [value]
        if field.type == FieldDescriptor.TYPE_STRING and not all(isinstance(x, str) for x in items):
            raise ModelReadError("the model holds a name that is not UTF-8")
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in items:
                check_fields(item)


def read_initializers(graph: GraphProto, folder: Folder) -> Iterator[tuple[str, Tensor]]:
    """Yield the stored tensors of a graph with their names."""
    check_once((tensor.name for tensor in graph.initializer), "initializer", "LC016")
    for tensor in graph.initializer:
        yield tensor.name, read_tensor(tensor, folder)


def read_input(info: ValueInfoProto) -> Input:
    """Return an input of the graph with its stated type and shape."""
    if info.type.WhichOneof("value") != "tensor_type":
        return Input(info.name, f"unread {info.type.WhichOneof('value')}", None)
    tensor = info.type.tensor_type
    dtype = DTYPES.get(tensor.elem_type, f"unread {tensor.elem_type}")
    if not tensor.HasField("shape"):
        return Input(info.name, dtype, None)
    dims = [
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else dim.dim_param
        for dim in tensor.shape.dim
    ]
    if dims[:1] == [-1]:  # PaddlePaddle writes a batch of any size so
        dims[0] = ""
    if len(dims) > MAX_RANK or any(
        isinstance(dim, int) and not 0 <= dim < _MAX_DIM for dim in dims
    ):
        raise ModelReadError(f"the shape of the graph input {shown(info.name)} is impossible")
    return Input(info.name, dtype, tuple(dims))


def stated_shapes(graph: GraphProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the shapes of results that the file states; -1 replaces symbols and unknown sizes."""
    for info in (*graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if info.type.WhichOneof("value") == "tensor_type" and tensor.HasField("shape"):
            dims = (
                dim.dim_value if dim.WhichOneof("value") == "dim_value" else -1
                for dim in tensor.shape.dim
            )
            yield info.name, tuple(dims)


def read_node(proto: NodeProto, folder: Folder) -> Node:
    """Return a node; calls and branches are resolved later, for the whole model."""
    try:
        check_once((item.name for item in proto.attribute), "attribute")
        if proto.overload:
            raise ModelReadError("it calls a variant of a function")
        if not any(proto.output):
            raise ModelReadError("it has no output", "LC001")
        is_if = proto.op_type == "If"
        attributes = {
            item.name: read_attribute(item, folder, has_branches=is_if) for item in proto.attribute
        }
    except ModelReadError as error:
        name = proto.name or next(filter(None, proto.output), "")
        raise error.at(f"node {shown(name)} ({shown(proto.op_type)})", "LC016") from None
    inputs = tuple(proto.input)
    if any(isinstance(item.value, Loop) for item in attributes.values()):
        from lipcert.core.reader.nested import names_read_inside  # noqa: PLC0415  for such alone

        inputs += tuple(dict.fromkeys(names_read_inside(proto)))
    return Node(
        name=proto.name,
        op_type=proto.op_type,
        domain=domain_of(proto.domain),
        inputs=inputs,
        outputs=tuple(proto.output),
        attributes=attributes,
        metadata=noted(proto),
    )


def read_attribute(
    proto: AttributeProto, folder: Folder, *, has_branches: bool = True
) -> Attribute:
    """Return an attribute. has_branches: whether to read a graph in it as a branch of an If."""
    if proto.type == AttributeProto.GRAPH and not has_branches:
        return Attribute("GRAPH", Loop(proto.g.SerializeToString(deterministic=True)))
    kind = AttributeProto.AttributeType.Name(proto.type)
    if kind not in _FIELDS:
        raise ModelReadError(f"the attribute {shown(proto.name)} has a kind that is not read")
    field = _FIELDS[kind]
    own = "ref_attr_name" if proto.ref_attr_name else field
    others = {descriptor.name for descriptor, _ in proto.ListFields()} - _LABELS - {own}
    if others:
        raise ModelReadError(f"the attribute {shown(proto.name)} has more than one value")
    stored = getattr(proto, field)
    value: AttributeValue
    if proto.ref_attr_name:
        value = Reference(proto.ref_attr_name)
    elif kind == "TENSOR":
        value = read_tensor(stored, folder)
    elif kind == "GRAPH":
        from lipcert.core.reader.nested import read_branch  # noqa: PLC0415  for such alone

        value = read_branch(stored, folder)
    elif kind.endswith("S"):
        value = tuple(stored)
    else:
        value = stored
    return Attribute(kind, value)


def operator_sets(proto: ModelProto | FunctionProto) -> dict[str, int]:
    """Return the version of each imported operator set; two versions of one are refused."""
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = domain_of(entry.domain)
        if versions.get(domain, entry.version) != entry.version:
            raise ModelReadError(
                f"the model imports two versions of the operator set {shown(domain)}"
            )
        if not 1 <= entry.version < 1 << 31:
            raise ModelReadError(f"the operator set {shown(domain)} is impossible", "LC003")
        versions[domain] = entry.version
    return versions


def domain_of(name: str) -> str:
    """Return the domain; the standard one has two spellings, "" and "ai.onnx", and is ""."""
    return "" if name == "ai.onnx" else name


def check_once(names: Iterable[str], what: str, code: str = "LC001") -> None:
    """Raise `ModelReadError` if a name is empty or occurs twice."""
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            raise ModelReadError(f"the {what} {shown(name)} has no name or occurs twice", code)
        seen.add(name)


def check_order(nodes: Iterable[Node], given: set[str], outputs: Iterable[str]) -> None:
    """Raise `ModelReadError` unless each node reads only given names and earlier outputs.

    This rules out cycles. Raise it also if a name is defined twice, or an output never.
    """
    known = set(given)
    for node in nodes:
        for name in filter(None, node.inputs):
            if name not in known:
                raise ModelReadError(
                    f"node {shown(node.name)} ({shown(node.op_type)}) reads {shown(name)} before it"
                    " is computed (a cycle, a missing value or unsorted nodes)"
                )
        for name in filter(None, node.outputs):
            if name in known:
                raise ModelReadError(f"{shown(name)} is computed twice")
            known.add(name)
    for name in outputs:
        if name not in known:
            raise ModelReadError(f"the graph output {shown(name)} is never computed")


def noted(message: GraphProto | NodeProto | ValueInfoProto) -> dict[str, str]:
    """Return the metadata that the exporter attached to the object, as texts."""
    return {item.key: item.value for item in message.metadata_props}
