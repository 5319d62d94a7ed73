"""Layers for certificates: between which values of the checker's program training clips.

What enters: an analysis, whose nodes hold the clips of the mechanism, and the checker's program.
What leaves: the ends of every layer. Nothing is trusted: they become a premise that the checker
states in words, and from which it derives bounds of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from lipcert.analysis.records import Analysis, NodeReport
from lipcert.core.ledger import BackpropagationClip, LayerEnds
from lipcert.core.program import Program
from lipcert.errors import NoVerdictError
from lipcert.privacy.mechanisms import BackpropClipping

_INPUT: Final = "InputClip"
_COTANGENT: Final = "CotangentClip"
_KEEPING: Final = frozenset({_COTANGENT, "Reshape", "Transpose"})
"""before or behind these, a clip of the whole value to a Euclidean norm does the same"""


def clip_of(
    mechanism: BackpropClipping, analysis: Analysis, program: Program
) -> BackpropagationClip:
    """The clips of an analysis. NoVerdictError where the checker has no such values."""
    return BackpropagationClip(
        input_clip=mechanism.input_clip,
        cotangent_clip=mechanism.cotangent_clip,
        conv_clip="l1.5" if mechanism.l15_on_convs else "l2",
        layers=tuple(_layers(analysis, program)),
    )


def _layers(analysis: Analysis, program: Program) -> Iterator[LayerEnds]:
    """From the clip of the input, over the only reader of each value, to that of the cotangent."""
    makers = {node.output: node for node in analysis.nodes}
    readers: dict[str, list[NodeReport]] = {}
    for node in analysis.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    for node in analysis.nodes:
        if node.op != _INPUT:
            continue
        (start,), value = node.inputs, node.output
        while True:
            reader = readers[value][0]
            if len(readers[value]) != 1 or len(reader.inputs) != 1:
                raise NoVerdictError(
                    f"certify: the layer at {reader.name} ({reader.op}) reads several values, and "
                    "the checker has clips for layers that read one; freeze it"
                )
            if reader.op == _COTANGENT:
                break
            value = reader.output
        yield _standing(start, makers, program), _known(value, program)


def _standing(value: str, makers: Mapping[str, NodeReport], program: Program) -> str:
    """The value of the program that a value is an arrangement of."""
    while value not in program.shapes:
        maker = makers.get(value)
        if maker is None or maker.op not in _KEEPING:
            return _known(value, program)
        (value,) = maker.inputs
    return value


def _known(value: str, program: Program) -> str:
    if value not in program.shapes:
        raise NoVerdictError(
            f"certify: a clip stands at {value!r}, which is no value of its own to the checker"
        )
    return value
