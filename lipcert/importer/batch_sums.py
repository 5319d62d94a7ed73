"""The batch axis under ops that read along axes: reductions, normalizations, matrix products.

What enters: the layouts of the inputs of one node. What leaves: that of its output, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from lipcert.importer.batch_entries import only
from lipcert.importer.layout import Layout, MixingError, ReadsAcrossError
from lipcert.importer.raw import RawNode
from lipcert.importer.rearrange import axes_of
from lipcert.importer.static_graph import StaticGraph


def along(
    graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode, axes: set[int]
) -> Layout:
    """Ops that read across the given axes; axes that disappear shift the batch axis."""
    layout = only(graph, layouts, node)
    axes = {axis % layout.rank for axis in axes}
    if layout.axis in axes:
        raise ReadsAcrossError(f"it reads across the batch axis {layout.axis}")
    shape = graph.shape(node.outputs[0])
    gone = sum(1 for axis in axes if axis < layout.axis) if len(shape) < layout.rank else 0
    return layout.moved(shape, layout.axis - gone)


def reduce(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Reduce nodes: the batch axis is none of the axes."""
    rank = len(graph.shape(node.inputs[0]))
    axes = axes_of(node, graph.control(node))
    if not axes:
        axes = () if node.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return along(graph, layouts, node, set(axes))


def softmax(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """One axis, or up to version 12 all from the axis on."""
    rank = len(graph.shape(node.inputs[0]))
    if node.since_version >= 13:
        return along(graph, layouts, node, {node.integer("axis", -1)})
    return along(graph, layouts, node, set(range(node.integer("axis", 1) % rank, rank)))


def trailing(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """All axes from `axis` on."""
    rank = len(graph.shape(node.inputs[0]))
    return along(graph, layouts, node, set(range(node.integer("axis", -1) % rank, rank)))


def one_axis(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """The axis alone."""
    return along(graph, layouts, node, {node.integer("axis", -1)})


def matrix_axes(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """The last two axes."""
    return along(graph, layouts, node, {-2, -1})


def cumulated(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """The axis that the second input names."""
    axis = graph.control(node)[0]
    if axis is None:
        raise ValueError("its axis is missing")
    return along(graph, layouts, node, {int(axis.reshape(-1)[0])})


def product(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Matrix products: the batch must not be contracted, nor differ between two data inputs."""
    shape = graph.shape(node.outputs[0])
    places = []
    for position, (name, attribute) in enumerate(
        zip(node.inputs[:2], ("transA", "transB"), strict=True)
    ):
        if name in graph.values:
            is_flipped = bool(node.integer(attribute, 0))
            other_is_vector = len(graph.shape(node.inputs[1 - position])) == 1
            rank = len(shape) + other_is_vector
            place = _matrix_place(layouts[name], rank, position, is_flipped)
            places.append(place - (other_is_vector and place == len(shape)))
    if len(set(places)) != 1 or (len(places) == 2 and places[0] >= len(shape) - 2):
        raise MixingError("its inputs carry the batch on different axes")
    layout = layouts[next(name for name in node.inputs[:2] if name in graph.values)]
    result = layout.moved(shape, places[0])
    for position, name in enumerate(node.inputs[:2]):
        if name not in graph.values:
            _check_factor(graph, result, name, position)
        elif (layouts[name].before, layouts[name].after) != (layout.before, layout.after):
            raise MixingError("its inputs carry the batch in different ways")
    addend = node.input(2)
    if addend and addend not in graph.values:
        result.example_part(graph.constants[addend])
    elif addend:
        other = layouts[addend]
        if other.moved(shape, other.axis + len(shape) - other.rank) != result:
            raise MixingError("its third input carries the batch on another axis")
    return result


def _matrix_place(layout: Layout, rank: int, position: int, is_flipped: bool) -> int:
    """Axis of the product on which the batch of one factor ends up."""
    from_end = layout.rank - layout.axis
    if layout.rank == 1:
        raise ReadsAcrossError("it sums over the batch axis 0")
    if from_end > 2:
        return rank - from_end
    is_row = (from_end == 2) != is_flipped
    if is_row != (position == 0):
        raise ReadsAcrossError(f"it sums over the batch axis {layout.axis}")
    return rank - 2 if position == 0 else rank - 1


def _check_factor(graph: StaticGraph, result: Layout, name: str, position: int) -> None:
    """A constant factor must be the same for every example."""
    shape = graph.constants[name].shape
    if len(shape) == 1:
        return
    axis = result.axis - (result.rank - len(shape))
    if result.axis >= result.rank - 2:
        is_own = (result.axis == result.rank - 2) == (position == 0)
        if is_own:
            raise MixingError("a constant factor spans the batch axis")
        return
    if axis >= 0 and shape[axis] != 1:
        raise MixingError("a constant factor differs from example to example")
