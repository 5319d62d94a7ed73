"""The batch axis under ops that move entries: reshaping, selection, padding, joining.

What enters: the layouts of the inputs of one node. What leaves: that of its output, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipcert.importer.batch_entries import only
from lipcert.importer.layout import Layout, MixingError, locate
from lipcert.importer.raw import RawNode
from lipcert.importer.rearrange import axes_of, slices_of
from lipcert.importer.static_graph import StaticGraph


def reshape(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Row-major order is kept, so P is."""
    layout = only(graph, layouts, node)
    return locate(layout.prefix, graph.shape(node.outputs[0]), layout.batch)


def transpose(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """The batch axis moves with its place in the permutation."""
    layout = only(graph, layouts, node)
    perm = node.integers("perm") or tuple(reversed(range(layout.rank)))
    return layout.moved(graph.shape(node.outputs[0]), perm.index(layout.axis))


def expand(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """New axes come first; the batch axis keeps its place from the end."""
    layout = only(graph, layouts, node)
    shape = graph.shape(node.outputs[0])
    return layout.moved(shape, layout.axis + len(shape) - layout.rank)


def same_axis(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Ops that work along other axes and keep the rank (Slice, Pad, Tile, Resize)."""
    layout = only(graph, layouts, node)
    return layout.moved(graph.shape(node.outputs[0]), layout.axis)


def cut(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Slice: the batch axis must be kept whole, in order."""
    layout = same_axis(graph, layouts, node)
    part = slices_of(node, graph.control(node), layout.rank)[layout.axis]
    size = layout.shape[layout.axis]
    if part.indices(size) != (0, size, 1):
        raise MixingError(f"it reorders or selects along the batch axis {layout.axis}")
    return layout


def pad(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """The batch axis must not be padded."""
    layout = same_axis(graph, layouts, node)
    pads = node.integers("pads")
    if pads is None:
        control = graph.control(node)
        given = [int(item) for item in control[0].reshape(-1)] if control[0] is not None else []
        axes = axes_of(node, control, 2)
        places = range(layout.rank) if axes is None else [axis % layout.rank for axis in axes]
        half = len(given) // 2
        pads = tuple(
            given[list(places).index(axis) + half * side] if axis in places else 0
            for side in range(2)
            for axis in range(layout.rank)
        )
    if pads[layout.axis] != 0 or pads[layout.axis + layout.rank] != 0:
        raise MixingError(f"it pads the batch axis {layout.axis}")
    return layout


def gather(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Indices replace another axis."""
    layout = only(graph, layouts, node)
    axis = node.integer("axis", 0) % layout.rank
    if axis == layout.axis:
        raise MixingError(f"it selects along the batch axis {axis}")
    indices = graph.constants[node.inputs[1]].array
    place = layout.axis if layout.axis < axis else layout.axis - 1 + indices.ndim
    return layout.moved(graph.shape(node.outputs[0]), place)


def gather_elements(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Entries along another axis, at places that are the same for every example."""
    layout = only(graph, layouts, node)
    if node.integer("axis", 0) % layout.rank == layout.axis:
        raise MixingError(f"it selects along the batch axis {layout.axis}")
    shape = graph.shape(node.outputs[0])
    if shape[layout.axis] != layout.shape[layout.axis]:
        raise MixingError(f"it keeps a part of the batch axis {layout.axis}")
    result = layout.moved(shape, layout.axis)
    result.example_part(graph.constants[node.inputs[1]])
    return result


def split(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> dict[str, Layout]:
    """Parts along another axis."""
    layout = only(graph, layouts, node)
    return {name: layout.moved(graph.shape(name), layout.axis) for name in node.outputs if name}


def concat(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Joined along another axis, with the batch at the same place."""
    shape = graph.shape(node.outputs[0])
    axis = node.integer("axis", 1) % len(shape)
    found = {layouts[name].axis for name in node.inputs if name in graph.values}
    if found == {axis}:
        raise MixingError(f"it joins along the batch axis {axis}")
    if len(found) != 1:
        raise MixingError("its inputs carry the batch on different axes")
    layout = layouts[next(name for name in node.inputs if name in graph.values)]
    splits = {
        (layouts[name].before, layouts[name].after) for name in node.inputs if name in graph.values
    }
    if len(splits) != 1:
        raise MixingError("its inputs carry the batch in different ways")
    for name in node.inputs:
        if name not in graph.values:
            layout.example_part(graph.constants[name])
    return layout.moved(shape, layout.axis)
