"""From a path to a `Model`.

Refused, because the checker would have to interpret more than it can justify: sparse tensors,
training graphs, and whatever has two readings or none: names defined twice or never, cycles,
attributes with two values, unknown fields, two models in one file. Bodies of loops, tensors of text
and inputs that are not tensors of numbers are kept as they are: what depends on them is refused.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError
from onnx.onnx_ml_pb2 import ModelProto

from lipcert.core.reader.files import MAX_BYTES, Folder, read_model_bytes
from lipcert.core.reader.graph import (
    check_once,
    check_order,
    noted,
    operator_sets,
    read_initializers,
    read_input,
    read_node,
    stated_shapes,
)
from lipcert.core.reader.records import (
    MAX_NODES,
    Branch,
    Function,
    Model,
    ModelReadError,
    Reference,
)
from lipcert.core.reader.wire import check_known, check_single_model, check_text

_IR_VERSIONS: Final = range(3, 14)


def read_model(path: Path) -> Model:
    """The model in a file, with the external data in its folder; `ModelReadError` otherwise."""
    return read_parsed(path)[0]


def read_parsed(path: Path) -> tuple[Model, ModelProto]:
    """Likewise, and the message that was parsed."""
    content = read_model_bytes(path)
    try:
        check_single_model(content)
        proto = ModelProto.FromString(content)
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
    initializers = dict(read_initializers(graph, folder))
    declared = [read_input(info) for info in graph.input]
    check_once((item.name for item in declared), "graph input")
    outputs = tuple(info.name for info in graph.output)
    check_once(outputs, "graph output")
    opset = operator_sets(proto)
    functions: dict[tuple[str, str], Function] = {}
    if len(proto.functions):
        from lipcert.core.reader.nested import read_functions  # noqa: PLC0415  for such models only

        functions |= read_functions(proto, opset, folder)
    given = {*initializers, *(item.name for item in declared)}
    nodes = tuple(read_node(node, folder) for node in graph.node)
    values = (item.value for node in nodes for item in node.attributes.values())
    if functions or any(isinstance(value, Branch | Reference) for value in values):
        from lipcert.core.reader.inlining import Inliner  # noqa: PLC0415

        inliner = Inliner(functions, given.union(outputs, *(node.outputs for node in nodes)))
        nodes = tuple(inliner.nodes(nodes, {}))
        initializers |= inliner.initializers
        given |= set(inliner.initializers)
    check_order(nodes, given, outputs)
    return Model(
        opset=opset,
        inputs=tuple(item for item in declared if item.name not in initializers),
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
