"""Proof that examples of a batch stay independent, op by op.

What enters: the data path at one batch size. What leaves: the layout of every value, or refusals
that name the axis and the node where examples meet. Each rule states how one op moves the batch
axis and fails where the op reads across it. The proof holds for every batch size because it is
made at two prime sizes that divide no dimension and must agree on every example shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from lipcert.errors import Refusal
from lipcert.importer.fold import StaticGraph
from lipcert.importer.layout import Layout, MixingError, locate
from lipcert.importer.raw import RawNode
from lipcert.importer.rearrange import axes_of, slices_of

__all__ = ["prove_independence"]

Layouts = dict[str, Layout]
Rule = Callable[[StaticGraph, Mapping[str, Layout], RawNode], Layout]


def prove_independence(graph: StaticGraph, source: Layout) -> tuple[Layouts, tuple[Refusal, ...]]:
    """The layout of every value that depends on the data, given that of the input."""
    layouts: Layouts = {graph.input_name: source}
    refusals: list[Refusal] = []
    for node in graph.nodes:
        data = [name for name in node.inputs if name in graph.values]
        if any(name not in layouts for name in data):
            continue
        rule = _RULES.get(node.op_type)
        try:
            if rule is None:
                raise MixingError("no rule says how it treats the batch")
            if node.op_type == "Split":
                layouts.update(_split(graph, layouts, node))
            else:
                layouts[node.outputs[0]] = rule(graph, layouts, node)
        except (MixingError, ValueError, IndexError) as error:
            if source.batch == 1 and all(layouts[name].is_merged for name in data):
                layouts.update(_one_example(graph, node))
            else:
                refusals.append(_refusal(node, error))
    return layouts, tuple(refusals)


def _one_example(graph: StaticGraph, node: RawNode) -> dict[str, Layout]:
    """With a single example that has no batch axis of its own, every output is part of it."""
    return {name: locate(1, graph.shape(name), 1) for name in node.output_names}


def _refusal(node: RawNode, error: Exception) -> Refusal:
    if node.op_type in _FIXED_SIZES:
        reason = f"it has fixed sizes that fit one batch size only: {error}"
        return Refusal("LC008", node.name, node.op_type, reason, "give scales, not sizes")
    return Refusal(
        "LC007",
        node.name,
        node.op_type,
        f"examples of a batch influence each other: {error}",
        "use a layer that treats every example alone (GroupNorm, LayerNorm, eval mode)",
    )


def _only(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Layout of the first input, all others being constant."""
    if node.inputs[0] not in graph.values:
        raise MixingError("its first input is constant and another depends on the data")
    if any(name in graph.values for name in node.inputs[1:]):
        raise MixingError("its parameters depend on the data")
    return layouts[node.inputs[0]]


def _elementwise(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    layout = layouts[next(name for name in node.inputs if name in graph.values)]
    return layout.moved(graph.shape(node.outputs[0]), layout.axis)


def _broadcast(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
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


def _spatial(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Channels on axis 1, positions after it: the batch must lie on axis 0."""
    layout = _only(graph, layouts, node)
    if layout.axis != 0:
        raise MixingError(f"the batch lies on axis {layout.axis}, which is not the batch axis here")
    return layout.moved(graph.shape(node.outputs[0]), 0)


def _reshape(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    layout = _only(graph, layouts, node)
    return locate(layout.prefix, graph.shape(node.outputs[0]), layout.batch)


def _transpose(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    layout = _only(graph, layouts, node)
    perm = node.integers("perm") or tuple(reversed(range(layout.rank)))
    return layout.moved(graph.shape(node.outputs[0]), perm.index(layout.axis))


def _expand(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    layout = _only(graph, layouts, node)
    shape = graph.shape(node.outputs[0])
    return layout.moved(shape, layout.axis + len(shape) - layout.rank)


def _same_axis(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    """Ops that work along other axes and keep the rank (Slice, Pad, Tile, Resize)."""
    layout = _only(graph, layouts, node)
    return layout.moved(graph.shape(node.outputs[0]), layout.axis)


def _slice(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    layout = _same_axis(graph, layouts, node)
    part = slices_of(node, graph.control(node), layout.rank)[layout.axis]
    size = layout.shape[layout.axis]
    if part.indices(size) != (0, size, 1):
        raise MixingError(f"it reorders or selects along the batch axis {layout.axis}")
    return layout


def _pad(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    layout = _same_axis(graph, layouts, node)
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


def _gather(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    layout = _only(graph, layouts, node)
    axis = node.integer("axis", 0) % layout.rank
    if axis == layout.axis:
        raise MixingError(f"it selects along the batch axis {axis}")
    indices = graph.constants[node.inputs[1]].array
    place = layout.axis if layout.axis < axis else layout.axis - 1 + indices.ndim
    return layout.moved(graph.shape(node.outputs[0]), place)


def _split(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> dict[str, Layout]:
    layout = _only(graph, layouts, node)
    return {name: layout.moved(graph.shape(name), layout.axis) for name in node.outputs if name}


def _concat(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
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


def _along(
    graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode, axes: set[int]
) -> Layout:
    """Ops that read across the given axes; axes that disappear shift the batch axis."""
    layout = _only(graph, layouts, node)
    axes = {axis % layout.rank for axis in axes}
    if layout.axis in axes:
        raise MixingError(f"it reads across the batch axis {layout.axis}")
    shape = graph.shape(node.outputs[0])
    gone = sum(1 for axis in axes if axis < layout.axis) if len(shape) < layout.rank else 0
    return layout.moved(shape, layout.axis - gone)


def _reduce(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    rank = len(graph.shape(node.inputs[0]))
    axes = axes_of(node, graph.control(node))
    if not axes:
        axes = () if node.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return _along(graph, layouts, node, set(axes))


def _softmax(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    rank = len(graph.shape(node.inputs[0]))
    if node.since_version >= 13:
        return _along(graph, layouts, node, {node.integer("axis", -1)})
    return _along(graph, layouts, node, set(range(node.integer("axis", 1) % rank, rank)))


def _trailing(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    rank = len(graph.shape(node.inputs[0]))
    return _along(graph, layouts, node, set(range(node.integer("axis", -1) % rank, rank)))


def _one_axis(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
    return _along(graph, layouts, node, {node.integer("axis", -1)})


def _product(graph: StaticGraph, layouts: Mapping[str, Layout], node: RawNode) -> Layout:
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
        raise MixingError("it sums over the batch axis 0")
    if from_end > 2:
        return rank - from_end
    is_row = (from_end == 2) != is_flipped
    if is_row != (position == 0):
        raise MixingError(f"it sums over the batch axis {layout.axis}")
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


_ELEMENTWISE: Final = [
    "Abs",
    "Atan",
    "Cast",
    "CastLike",
    "Celu",
    "Cos",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "Gelu",
    "FastGelu",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "QuickGelu",
    "Relu",
    "Selu",
    "Sigmoid",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tanh",
]
_BROADCAST: Final = [
    "Add",
    "Clip",
    "Div",
    "Max",
    "Mean",
    "Min",
    "Mul",
    "Pow",
    "PRelu",
    "Sub",
    "Sum",
    "Where",
]
_SPATIAL: Final = [
    "AveragePool",
    "Conv",
    "ConvTranspose",
    "DepthToSpace",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "BatchNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "LpPool",
    "MaxPool",
    "SpaceToDepth",
]

_FIXED_SIZES: Final = frozenset({"Resize", "Upsample"})

_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **dict.fromkeys(_ELEMENTWISE, _elementwise),
        **dict.fromkeys(_BROADCAST, _broadcast),
        **dict.fromkeys(_SPATIAL, _spatial),
        **dict.fromkeys(["Reshape", "Flatten", "Squeeze", "Unsqueeze"], _reshape),
        **dict.fromkeys(["Tile", "Resize", "Upsample", "Split"], _same_axis),
        **dict.fromkeys(["LayerNormalization", "RMSNormalization"], _trailing),
        **dict.fromkeys(
            ["ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"], _reduce
        ),
        **dict.fromkeys(["Softmax", "LogSoftmax"], _softmax),
        "Concat": _concat,
        "Expand": _expand,
        "Gather": _gather,
        "Gemm": _product,
        "MatMul": _product,
        "Pad": _pad,
        "Slice": _slice,
        "TopK": _one_axis,
        "Transpose": _transpose,
    }
)
