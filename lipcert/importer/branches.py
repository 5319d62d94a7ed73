"""The branch that an If takes, in its place: the other one is not held against a file.

What enters: a graph, and the same file as the core reads it. What leaves: the graph without the
branches that are not taken. The core decides which are; where it does not know, or a call of a
function stands between, an If stays as it is, with all that its branches read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from onnx import GraphProto, NodeProto

from lipcert.core.lower.lower import branches_taken
from lipcert.core.reader.records import Branch, Model, Node
from lipcert.importer.expansion import needed_nodes
from lipcert.importer.raw import RawGraph, RawNode

_Taken = Mapping[str, Branch]


def without_branches(graph: RawGraph, model: Model) -> RawGraph:
    """The graph with the nodes of branches that are taken, and an Identity for each result."""
    taken = branches_taken(model)
    if not taken:
        return graph
    known = {node.outputs: node for node in model.nodes}
    pairs = ((node, known.get(node.outputs)) for node in graph.nodes)
    return replace(graph, nodes=tuple(_expanded(pairs, taken)))


def take_branches(graph: GraphProto, model: Model) -> None:
    """Put a copy of the branch that is taken in place of the other one, also inside of it."""
    taken = branches_taken(model)
    if taken:
        known = {node.outputs: node for node in model.nodes}
        _take((((node, known.get(tuple(node.output))) for node in graph.node)), taken)


def _expanded(pairs: Iterable[tuple[RawNode, Node | None]], taken: _Taken) -> Iterator[RawNode]:
    for raw, node in pairs:
        key, branch = _taken_by(node, taken)
        body = raw.attributes.get(key)
        if not isinstance(body, RawGraph) or branch is None or not _fit(body.nodes, branch):
            yield raw
            continue
        yield from _expanded(zip(body.nodes, branch.nodes, strict=True), taken)
        for result, output in zip(body.outputs, raw.outputs, strict=True):
            yield replace(
                raw, op_type="Identity", inputs=(result,), outputs=(output,), attributes={}
            )


def _take(pairs: Iterable[tuple[NodeProto, Node | None]], taken: _Taken) -> None:
    for proto, node in pairs:
        key, branch = _taken_by(node, taken)
        bodies = {item.name: item.g for item in proto.attribute}
        if branch is None or key not in bodies or not _fit(bodies[key].node, branch):
            continue
        body = bodies[key]
        _take(zip(body.node, branch.nodes, strict=True), taken)
        kept = needed_nodes(body, [item.name for item in body.output])
        del body.node[:]
        body.node.extend(kept)
        for name in bodies.keys() - {key}:
            bodies[name].CopyFrom(body)


def _taken_by(node: Node | None, taken: _Taken) -> tuple[str, Branch | None]:
    """The attribute that holds the branch that a node takes, and the branch."""
    branch = None if node is None else taken.get(next(filter(None, node.outputs), ""))
    if node is None or branch is None:
        return "", None
    return next(key for key, item in node.attributes.items() if item.value is branch), branch


def _fit(nodes: Iterable[RawNode | NodeProto], branch: Branch) -> bool:
    """Whether these are the nodes of the branch one by one."""
    return [node.op_type for node in nodes] == [node.op_type for node in branch.nodes]
