"""Layers: between which values of the core's program training clips.

What enters: a graph that holds the clips of the mechanism, and the program of the same file. What
leaves: the ends of every layer, which become a premise that the core states in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from lipcert.core.ledger import LayerEnds
from lipcert.core.program import CotangentClip, InputClip, Program
from lipcert.core.reader.records import Model
from lipcert.errors import NoVerdictError
from lipcert.ir import Graph, Node
from lipcert.moves import is_arrangement


def layers_of(graph: Graph, model: Model, program: Program) -> Iterator[LayerEnds]:
    """From the clip of the input, over the only reader of each value, to that of the cotangent.

    NoVerdictError where file and program have no such values.
    """
    named = {program.input, *(name for node in model.nodes for name in node.outputs)}
    known = named & program.shapes.keys()
    makers = {node.output: node for node in graph.nodes}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    for node in graph.nodes:
        if not isinstance(node.op, InputClip):
            continue
        (start,), value = node.inputs, node.output
        while True:
            reader = readers[value][0]
            if len(readers[value]) != 1 or len(reader.inputs) != 1:
                raise NoVerdictError(
                    f"the layer at {reader.name} ({reader.kind}) reads several values, and "
                    "there are clips for layers that read one; freeze it"
                )
            if isinstance(reader.op, CotangentClip):
                break
            value = reader.output
        yield _standing(start, makers, known), _known(value, known)


def _standing(value: str, makers: Mapping[str, Node], known: AbstractSet[str]) -> str:
    """The value of the file that a value is an arrangement of."""
    while value not in known:
        maker = makers.get(value)
        if maker is None or not _keeps_norms(maker):
            return _known(value, known)
        (value,) = maker.inputs
    return value


def _known(value: str, known: AbstractSet[str]) -> str:
    if value not in known:
        raise NoVerdictError(
            f"a clip stands at {value!r}, which is no value of its own in the program"
        )
    return value


def _keeps_norms(node: Node) -> bool:
    """Whether a clip of the whole value to a Euclidean norm does the same before it and behind."""
    return isinstance(node.op, CotangentClip) or is_arrangement(node)
