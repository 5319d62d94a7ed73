"""Read the graphs inside a model: local functions, branches of an If, and bodies of loops."""

from collections.abc import Iterator, Mapping
from typing import Final

from onnx.onnx_ml_pb2 import FunctionProto, GraphProto, ModelProto, NodeProto

from lipcert.core.reader import Folder
from lipcert.core.reader.model import (
    check_once,
    domain_of,
    operator_sets,
    read_attribute,
    read_initializers,
    read_node,
)
from lipcert.core.reader.records import MAX_NODES, Branch, Function, ModelReadError, shown

_MAX_NESTING: Final = 20
"""Largest depth of nested loops."""
_OF_OPERATORS: Final = ("ai.onnx", "com.microsoft", "com.ms.")
"""Prefixes of domains with built-in operators, which onnxruntime calls instead of functions."""


def read_functions(
    proto: ModelProto, opset: Mapping[str, int], folder: Folder
) -> Iterator[tuple[tuple[str, str], Function]]:
    """Yield the local functions by domain and name; they must use the model's operator sets."""
    keys = [(domain_of(item.domain), item.name) for item in proto.functions]
    if len(set(keys)) < len(keys) or sum(len(f.node) for f in proto.functions) > MAX_NODES:
        raise ModelReadError("a local function is defined twice, or there are too many nodes")
    for key, item in zip(keys, proto.functions, strict=True):
        try:
            yield key, _function(item, opset, folder)
        except ModelReadError as error:
            raise error.at(f"the local function {shown(item.name)}", "LC001") from None


def _function(proto: FunctionProto, opset: Mapping[str, int], folder: Folder) -> Function:
    if not proto.domain or proto.domain.startswith(_OF_OPERATORS) or proto.overload:
        raise ModelReadError("it replaces a standard operator, or is a variant of a function")
    for domain, version in operator_sets(proto).items():
        if opset.get(domain, version if domain else 0) != version:
            raise ModelReadError("its operator set is not that of the model")
    check_once(proto.input, "input")
    check_once(proto.output, "output")
    defaults = dict.fromkeys(proto.attribute) | {
        item.name: read_attribute(item, folder) for item in proto.attribute_proto
    }
    check_once([*proto.attribute, *(item.name for item in proto.attribute_proto)], "attribute")
    nodes = tuple(read_node(node, folder) for node in proto.node)
    return Function(tuple(proto.input), tuple(proto.output), defaults, nodes)


def read_branch(graph: GraphProto, folder: Folder) -> Branch:
    """Return a branch of an If; refuse one with inputs."""
    if len(graph.input) or len(graph.sparse_initializer):
        raise ModelReadError("a branch has inputs or sparse tensors")
    outputs = tuple(info.name for info in graph.output)
    initializers = dict(read_initializers(graph, folder))
    return Branch(tuple(read_node(node, folder) for node in graph.node), outputs, initializers)


def names_read_inside(loop: NodeProto, depth: int = _MAX_NESTING) -> Iterator[str]:
    """Yield the outer names that the bodies of a loop read."""
    for graph in (item.g for item in loop.attribute):
        if depth == 0:
            raise ModelReadError("loops are nested too deeply")
        inside = [(*node.input, *names_read_inside(node, depth - 1)) for node in graph.node]
        made = {item.name for item in (*graph.input, *graph.initializer)}
        made.update(name for node in graph.node for name in node.output)
        read = (*(name for names in inside for name in names), *(x.name for x in graph.output))
        yield from (name for name in read if name and name not in made)
