"""The batch axis under ops that treat every entry, or every image, alone.

What enters: the layouts of the inputs of one node. What leaves: that of its output, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipcert.importer.layout import Layout, MixingError
from lipcert.importer.raw import RawNode
from lipcert.importer.static_graph import StaticGraph


class DynamicParameterError(Exception):
    """What should be a constant of the layer depends on the data."""


def only(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Layout of the first input, all others being constant."""
    if node.inputs[0] not in graph.values:
        raise DynamicParameterError("its first input is constant and another depends on the data")
    if any(name in graph.values for name in node.inputs[1:]):
        raise DynamicParameterError("its weights, limits or indices depend on the data")
    return layouts[node.inputs[0]]


def elementwise(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """The same shape, entry by entry."""
    layout = layouts[next(name for name in node.inputs if name in graph.values)]
    return layout.moved(graph.shape(node.outputs[0]), layout.axis)


def broadcast(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Entry by entry with broadcasting: the batch must lie at the same place in all inputs."""
    shape = graph.shape(node.outputs[0])
    moved = {
        layouts[name].moved(shape, layouts[name].axis + len(shape) - layouts[name].rank)
        for name in node.inputs
        if name in graph.values
    }
    if len(moved) != 1:
        raise MixingError("its inputs carry the batch on different axes")
    (layout,) = moved
    for name in node.inputs:
        if name and name not in graph.values:
            layout.example_part(graph.constants[name])
    return layout


def spatial(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Channels on axis 1, positions after it: the batch must lie on axis 0."""
    layout = only(graph, layouts, node)
    if layout.axis != 0:
        raise MixingError(f"the batch lies on axis {layout.axis}, which is not the batch axis here")
    return layout.moved(graph.shape(node.outputs[0]), 0)
