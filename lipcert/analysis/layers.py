"""Layers: between which values of the core's program training clips.

What enters: a graph that holds the clips of the mechanism, and the program of the same file. What
leaves: the ends of every layer, which become a premise that the core states in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lipcert.core.ledger import LayerEnds
from lipcert.core.program import Program
from lipcert.errors import NoVerdictError
from lipcert.ir import Graph, Node
from lipcert.ops.base import Op
from lipcert.ops.clip import CotangentClip, InputClip
from lipcert.ops.move import Move


def layers_of(graph: Graph, program: Program) -> Iterator[LayerEnds]:
    """From the clip of the input, over the only reader of each value, to that of the cotangent.

    NoVerdictError where the program has no such values.
    """
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
                    f"the layer at {reader.name} ({reader.op.kind}) reads several values, and "
                    "there are clips for layers that read one; freeze it"
                )
            if isinstance(reader.op, CotangentClip):
                break
            value = reader.output
        yield _standing(start, makers, program), _known(value, program)


def _standing(value: str, makers: Mapping[str, Node], program: Program) -> str:
    """The value of the program that a value is an arrangement of."""
    while value not in program.shapes:
        maker = makers.get(value)
        if maker is None or not _keeps_norms(maker.op):
            return _known(value, program)
        (value,) = maker.inputs
    return value


def _known(value: str, program: Program) -> str:
    if value not in program.shapes:
        raise NoVerdictError(
            f"a clip stands at {value!r}, which is no value of its own in the program"
        )
    return value


def _keeps_norms(op: Op) -> bool:
    """Whether a clip of the whole value to a Euclidean norm does the same before it and behind."""
    return isinstance(op, CotangentClip) or (isinstance(op, Move) and op.is_permutation)
