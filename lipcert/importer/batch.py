"""Proof that examples of a batch stay independent, op by op.

What enters: the data path at one batch size. What leaves: the layout of every value, or refusals
that name the axis and the node where examples meet. Each rule states how one op moves the batch
axis and fails where the op reads across it. The proof holds for every batch size because it is
made at two prime sizes that divide no dimension and must agree on every example shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from lipcert.errors import Refusal
from lipcert.importer.batch_entries import DynamicParameterError, broadcast, elementwise, spatial
from lipcert.importer.batch_moves import (
    concat,
    cut,
    expand,
    gather,
    gather_elements,
    pad,
    reshape,
    same_axis,
    split,
    transpose,
)
from lipcert.importer.batch_sums import (
    cumulated,
    matrix_axes,
    one_axis,
    product,
    reduce,
    softmax,
    trailing,
)
from lipcert.importer.layout import Layout, MixingError, ReadsAcrossError, is_told, locate
from lipcert.importer.raw import RawNode
from lipcert.importer.static_graph import StaticGraph

Layouts = dict[str, Layout]
Rule = Callable[[StaticGraph, Mapping[str, Layout], RawNode], Layout]

_STATIC: Final = "use constant weights and sizes, or write the layer as a product (MatMul, Mul)"


def prove_independence(graph: StaticGraph, source: Layout) -> tuple[Layouts, tuple[Refusal, ...]]:
    """The layout of every value that depends on the data, given that of the input.

    In a batch of one, sizes alone do not tell which axis is that of the batch. An op that then
    seems to mix examples is refused as one that does (LC007) only where it reads across an axis
    that is the batch for certain, which would mean nothing for one example; otherwise as one
    whose sizes fit one batch size only (LC008).
    """
    layouts: Layouts = {graph.input_name: source}
    certain = {graph.input_name}
    refusals: list[Refusal] = []
    for node in graph.nodes:
        data = [name for name in node.inputs if name in graph.values]
        if any(name not in layouts for name in data):
            continue
        is_certain = source.batch > 1 or certain.issuperset(data)
        rule = _RULES.get(node.op_type)
        try:
            if rule is None:
                raise MixingError("no rule says how it treats the batch")
            if node.op_type == "Split":
                layouts.update(split(graph, layouts, node))
            else:
                layouts[node.outputs[0]] = rule(graph, layouts, node)
            if is_certain and (rule is not reshape or _is_told(graph, layouts, node)):
                certain.update(node.output_names)
        except DynamicParameterError as error:
            refusals.append(Refusal("LC003", node.name, node.op_type, str(error), _STATIC))
        except (MixingError, ValueError, IndexError) as error:
            is_one = source.batch == 1 and all(layouts[name].is_merged for name in data)
            if is_one and graph.shape(node.outputs[0]):
                layouts.update(_one_example(graph, node))
            elif source.batch > 1 or (is_certain and isinstance(error, ReadsAcrossError)):
                refusals.append(_refusal(node, error))
            else:
                reason = f"its examples cannot be told apart in a batch of one: {error}"
                refusals.append(Refusal("LC008", node.name, node.op_type, reason, _KEEP_BATCH))
    return layouts, tuple(refusals)


def _is_told(graph: StaticGraph, layouts: Layouts, node: RawNode) -> bool:
    """Whether a reshape leaves no doubt where the batch is."""
    before = layouts[node.inputs[0]]
    return is_told(before.prefix, graph.shape(node.outputs[0]), before.batch)


def moves_alone(refusals: Sequence[Refusal]) -> bool:
    """Whether what keeps examples from being told apart only moves entries."""
    mixing = [item for item in refusals if item.code == "LC007"]
    return all(item.op in _MOVES for item in mixing)


def _one_example(graph: StaticGraph, node: RawNode) -> dict[str, Layout]:
    """With a single example that has no batch axis of its own, every output is part of it."""
    shapes = {name: graph.values[name].shape for name in node.output_names if name in graph.values}
    return {name: locate(1, shape, 1) for name, shape in shapes.items() if shape}


def _refusal(node: RawNode, error: Exception) -> Refusal:
    if node.op_type in _FIXED_SIZES:
        reason = f"it has fixed sizes that fit one batch size only: {error}"
        return Refusal("LC008", node.name, node.op_type, reason, "give scales, not sizes")
    return Refusal(
        "LC007",
        node.name,
        node.op_type,
        f"examples of a batch influence each other: {error}",
        _KEEP_BATCH
        if node.op_type in _MOVES
        else "use a layer that treats every example alone (GroupNorm, LayerNorm, eval mode)",
    )


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
    "Reciprocal",
    "Relu",
    "Selu",
    "Sigmoid",
    "Sin",
    "RootMultiple",
    "SoftThreshold",
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
    "LRN",
    "LpPool",
    "MaxPool",
    "SpaceToDepth",
]

_REDUCTIONS: Final = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "ReduceSumSquare",
]
_MOVES: Final = frozenset(
    {"Concat", "Expand", "Flatten", "Gather", "Pad", "Reshape", "Slice", "Split", "Tile"}
)
_KEEP_BATCH: Final = "keep one axis for the batch alone, as in x.reshape(x.shape[0], ...)"
_FIXED_SIZES: Final = frozenset({"Resize", "Upsample"})

_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **dict.fromkeys(_ELEMENTWISE, elementwise),
        **dict.fromkeys(_BROADCAST, broadcast),
        **dict.fromkeys(_SPATIAL, spatial),
        **dict.fromkeys(["Reshape", "Flatten", "Squeeze", "Unsqueeze"], reshape),
        **dict.fromkeys(["Tile", "Resize", "Upsample", "Split"], same_axis),
        **dict.fromkeys(["LayerNormalization", "RMSNormalization"], trailing),
        **dict.fromkeys(_REDUCTIONS, reduce),
        **dict.fromkeys(["Softmax", "LogSoftmax"], softmax),
        "Concat": concat,
        "CumSum": cumulated,
        "Expand": expand,
        "Gather": gather,
        "GatherElements": gather_elements,
        "Gemm": product,
        "MatMul": product,
        "Pad": pad,
        "Slice": cut,
        "TopK": one_axis,
        "Transpose": transpose,
        "Trilu": matrix_axes,
    }
)
