"""Model-local functions: counted first, then expanded.

What enters: a parsed model. What leaves: the same model without functions, nor what a call computes
for an output that it leaves out. Invariant: nothing is expanded before it is known how large the
result is; functions that call others twice each, thirty levels deep, take two kilobytes and stand
for a billion nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import onnx.inliner
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from lipcert.errors import ModelFileError
from lipcert.importer.limits import MAX_FILE_BYTES, MAX_NODES

_MAX_NESTING: Final = 200
_Key = tuple[str, str, str]
_Size = tuple[int, int]
"""number of nodes, and of their bytes"""


def check_expansion(path: Path, proto: ModelProto) -> None:
    """Count nodes and their bytes after expansion of functions, without expanding anything."""
    bodies = {_key(function): function.node for function in proto.functions}
    if len(bodies) < len(proto.functions):
        raise _malformed(path, "defines a model-local function twice")
    sizes: dict[_Key, _Size] = {}
    active: set[_Key] = set()

    def measure(nodes: Iterable[NodeProto], depth: int) -> _Size:
        if depth > _MAX_NESTING:
            raise _malformed(path, "nests functions or sub-graphs too deeply")
        count = size = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            parts = [measure(body.node, depth + 1) for body in _subgraphs(node)]
            parts.append(measure_body(key, depth) if key in bodies else (1, node.ByteSize()))
            count += sum(part[0] for part in parts)
            size += sum(part[1] for part in parts)
        return count, size

    def measure_body(key: _Key, depth: int) -> _Size:
        if key in active:
            raise _malformed(path, f"defines the function {key[1]!r} by itself")
        if key not in sizes:
            active.add(key)
            sizes[key] = measure(bodies[key], depth + 1)
            active.remove(key)
        return sizes[key]

    count, size = measure(proto.graph.node, 0)
    if count > MAX_NODES or size > MAX_FILE_BYTES:
        what = f"more than {MAX_NODES} nodes, or {MAX_FILE_BYTES} bytes of them,"
        raise ModelFileError(f"{str(path)!r} has {what} after function expansion", "LC002")


def _key(function: FunctionProto) -> _Key:
    return function.domain, function.name, function.overload


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def expanded(path: Path, proto: ModelProto) -> ModelProto:
    """The model with every call replaced by what its outputs need of the function's body."""
    if not proto.functions:
        return proto
    try:
        inlined: ModelProto = onnx.inliner.inline_local_functions(proto)
    except Exception as error:
        raise _malformed(path, "has model-local functions that cannot be expanded") from error
    kept = needed_nodes(inlined.graph, [item.name for item in inlined.graph.output])
    del inlined.graph.node[:]
    inlined.graph.node.extend(kept)
    return inlined


def needed_nodes(graph: GraphProto, outputs: Iterable[str]) -> list[NodeProto]:
    """The nodes from which outputs are computed, in their order."""
    live = set(outputs)
    kept = []
    for node in reversed(graph.node):
        if live.intersection(node.output):
            kept.append(node)
            live |= names_read(node)
    return kept[::-1]


def names_read(node: NodeProto) -> set[str]:
    """Names of the values that a node reads, also inside its sub-graphs."""
    names = set(node.input)
    for body in _subgraphs(node):
        names.update(output.name for output in body.output)
        for inner in body.node:
            names |= names_read(inner)
    return names


def _malformed(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{str(path)!r} {why}")
