"""Survey: what else stands against a model that is refused already.

What enters: a graph, or as much of a data path as could be followed. What leaves: further refusals,
so that whoever repairs a model sees all of them at once. Nothing is refused for these reasons
alone: a step that cannot be taken for want of an earlier one is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lipcert.errors import Refusal, UnsupportedModelError
from lipcert.importer.build.builder import WeightNaming
from lipcert.importer.build.translate import translate
from lipcert.importer.guards import STEPS
from lipcert.importer.layout import Layout
from lipcert.importer.opsets import refusal_of
from lipcert.importer.patterns import recognise
from lipcert.importer.raw import RawGraph
from lipcert.importer.static_graph import StaticGraph, needed_values, values_read

_SHAPES: Final = frozenset({"Shape", "Size"})
_MOST_ENDS: Final = 8


def distinct(refusals: Iterable[Refusal]) -> tuple[Refusal, ...]:
    """The refusals without repetitions: one for each code, node and, without a node, reason."""
    kept: dict[tuple[str, str, str], Refusal] = {}
    for item in refusals:
        kept.setdefault((item.code, item.node, "" if item.node else item.reason), item)
    return tuple(kept.values())


def operator_refusals(graph: RawGraph, outputs: Sequence[str]) -> Iterator[Refusal]:
    """The operators on the way from any input to these outputs that have no bound anywhere."""
    live = set().union(*(needed_values(graph.nodes, name) for name in outputs))
    data = {item.name for item in graph.inputs}
    for node in graph.nodes:
        if node.op_type in _SHAPES or not live.intersection(node.output_names):
            continue
        if data.isdisjoint(values_read(node)):
            continue
        data.update(node.output_names)
        refusal = None if node.op_type in STEPS else refusal_of(node)
        if refusal is not None:
            yield refusal


def translation_refusals(graph: StaticGraph, layouts: Mapping[str, Layout]) -> Iterator[Refusal]:
    """The nodes without a translation, as far as the layouts of the values are known."""
    nodes = tuple(
        node
        for node in graph.nodes
        if layouts.keys() >= {name for name in values_read(node) if name in graph.values}
        and node.outputs[0] in layouts
    )
    read = {name for node in nodes for name in node.inputs}
    results = [name for node in nodes for name in node.output_names if name in layouts]
    ends = [name for name in results if name not in read]
    for end in ends[:_MOST_ENDS]:
        part, _ = recognise(replace(graph, nodes=nodes, output_name=end))
        try:
            translate(part, layouts, WeightNaming(literals_are_trained=True, folded=frozenset()))
        except UnsupportedModelError as error:
            yield from error.refusals
