"""The parts of a graph from their messages: tensors, inputs, shapes, nodes and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from onnx.onnx_ml_pb2 import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
)

from lipcert.core.reader.files import Folder
from lipcert.core.reader.records import (
    Attribute,
    AttributeValue,
    Input,
    Loop,
    ModelReadError,
    Node,
    Reference,
    Tensor,
    shown,
)
from lipcert.core.reader.tensors import DTYPES, MAX_RANK, UNREAD, read_tensor
from lipcert.core.reader.wire import check_known

_MAX_DIM: Final = 1 << 31
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
_LABELS: Final = frozenset({"name", "type", "doc_string"})


def read_initializers(graph: GraphProto, folder: Folder) -> Iterator[tuple[str, Tensor]]:
    """The stored tensors of a graph, by name."""
    check_once((tensor.name for tensor in graph.initializer), "initializer", "LC016")
    for tensor in graph.initializer:
        yield tensor.name, _tensor(tensor, folder)


def _tensor(proto: TensorProto, folder: Folder) -> Tensor:
    check_known(proto)
    if proto.data_type not in UNREAD:
        return read_tensor(proto, folder)
    from lipcert.core.reader.unread import unread_tensor  # noqa: PLC0415  for such alone

    return unread_tensor(proto)


def read_input(info: ValueInfoProto) -> Input:
    """An input of the graph, with what is stated of it."""
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


def stated_shapes(graph: GraphProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shapes of results that the file states; a symbol may stand for any number."""
    for info in (*graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if info.type.WhichOneof("value") == "tensor_type" and tensor.HasField("shape"):
            dims = (
                dim.dim_value if dim.WhichOneof("value") == "dim_value" else -1
                for dim in tensor.shape.dim
            )
            yield info.name, tuple(dims)


def read_node(proto: NodeProto, folder: Folder) -> Node:
    """A node, of which the reader of a model still resolves calls and branches."""
    try:
        check_known(proto)
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
        where = f"node {shown(proto.name)} ({shown(proto.op_type)})"
        raise error.at(where, "LC016") from None
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
    """An attribute; has_branches: whether a graph in it is followed."""
    if proto.type == AttributeProto.GRAPH and not has_branches:
        return Attribute("GRAPH", Loop(proto.g.SerializeToString(deterministic=True)))
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
        from lipcert.core.reader.nested import read_branch  # noqa: PLC0415  for such alone

        value = read_branch(stored, folder)
    elif kind.endswith("S"):
        value = tuple(stored)
    else:
        value = stored
    return Attribute(kind, value)


def operator_sets(proto: ModelProto | FunctionProto) -> dict[str, int]:
    """The operator sets that are imported, one version of each."""
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
    """The standard domain has two spellings."""
    return "" if name == "ai.onnx" else name


def check_once(names: Iterable[str], what: str, code: str = "LC001") -> None:
    """Raise `ModelReadError` unless every name is there, and occurs once."""
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            raise ModelReadError(f"the {what} {shown(name)} has no name or occurs twice", code)
        seen.add(name)


def check_order(nodes: Iterable[Node], given: set[str], outputs: Iterable[str]) -> None:
    """Raise `ModelReadError` unless each node reads only given names and earlier outputs.

    So there is no cycle. Likewise if a name is defined twice, or an output never.
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
    """What the exporter noted beside it, as texts."""
    return {item.key: item.value for item in message.metadata_props}
