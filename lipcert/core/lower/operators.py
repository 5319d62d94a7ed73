"""The supported operators, and the rule of each, which is loaded when a node needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final, TypeAlias, cast

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Data, Value
from lipcert.core.reader.records import Node

REALS: Final = frozenset({1, 10, 11, 16})
"""types of real numbers, as a Cast names them"""
Rule: TypeAlias = Callable[[Call], Value | list[Value]]


LAYOUT: Final[Mapping[str, str]] = {
    "Attention": "attention_op.attention",
    "CastLike": "constant_ops.cast_like",
    "Clip": "function_choices.clip",
    "Col2Im": "stacks.added_blocks",
    "Constant": "reals.constant",
    "CumSum": "composites.cumulated",
    "DepthToSpace": "block_ops.depth_to_space",
    **dict.fromkeys(["Dropout", "Identity"], "layout_ops.same"),
    "Einsum": "contraction.einsum",
    "Expand": "repeat_ops.expand",
    "Flatten": "layout_ops.flatten",
    "Gather": "selection_ops.gather",
    "GatherElements": "block_ops.gather_elements",
    "GatherND": "block_ops.gather_nd",
    "Gelu": "function_choices.gelu",
    "LpNormalization": "composites.lp_normalization",
    "Mean": "composites.mean",
    "MeanVarianceNormalization": "composites.mean_variance",
    "Pad": "selection_ops.pad",
    "ReduceLogSum": "composites.log_sum",
    "Reshape": "layout_ops.reshape",
    **dict.fromkeys(["Resize", "Upsample"], "resize_ops.resize"),
    "ScatterElements": "block_ops.scatter_elements",
    "ScatterND": "block_ops.scatter_nd",
    "SequenceAt": "sequences.part",
    "SplitToSequence": "sequences.cut",
    "Shape": "size_ops.shape_of",
    "Shrink": "function_choices.shrink",
    "Size": "size_ops.size_of",
    "Slice": "selection_ops.slice_",
    "SpaceToDepth": "block_ops.space_to_depth",
    "Split": "selection_ops.split",
    "Squeeze": "layout_ops.squeeze",
    "Swish": "function_choices.swish",
    "Tile": "repeat_ops.tile",
    "Transpose": "layout_ops.transpose",
    "Trilu": "block_ops.triangle",
    "Unsqueeze": "layout_ops.unsqueeze",
}
"""operators that treat constants as they treat values: module and function of each

Composite ones are written down in others, which have rules for both.
"""
DATA: Final[Mapping[str, str]] = {
    **dict.fromkeys(["AveragePool", "LpPool", "MaxPool"], "pool_ops.pool"),
    **dict.fromkeys(["GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"], "axis_ops.global_pool"),
    **dict.fromkeys(
        ["ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
         "ReduceSum", "ReduceSumSquare"], "axis_ops.reduction",
    ),
    **dict.fromkeys(["Softmax", "LogSoftmax"], "axis_ops.softmax"),
    **dict.fromkeys(
        ["GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"],
        "axis_ops.normalization",
    ),
    **dict.fromkeys(["Conv", "ConvTranspose"], "conv_ops.conv"),
    **dict.fromkeys(["And", "Or"], "truth.both"),
    **dict.fromkeys(["ArgMax", "ArgMin"], "truth.largest_place"),
    "BatchNormalization": "batch_norm.batch_norm",
    "Cast": "layout_ops.same",
    "Concat": "joining.concat",
    **dict.fromkeys(
        ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"], "truth.comparison"
    ),
    "Gemm": "gemm.gemm",
    "LRN": "axis_ops.local_response",
    "MatMul": "linear_ops.matmul",
    **dict.fromkeys(["Max", "Min"], "pair_ops.extremum"),
    "Not": "truth.opposite",
    "OneHot": "selection_ops.one_hot",
    "Pow": "pair_ops.power",
    "TopK": "selection_ops.top",
    "Where": "pair_ops.choice",
}  # fmt: skip
"""operators on values that are computed from the input"""
TABLES: Final = ("functions.FUNCTIONS", "entry_ops.ENTRY_OPS")
"""what else there is for such values, by the module that holds it"""
CONSTANTS: Final[Mapping[str, str]] = {
    "Concat": "size_ops.joined",
    **dict.fromkeys(
        ["DequantizeLinear", "com.microsoft.DequantizeLinear"], "quantised.dequantised"
    ),
    "BatchNormalization": "composites.batch_norm",
    "Gemm": "composites.gemm",
    "LayerNormalization": "composites.layer_norm",
    "Softmax": "composites.softmax",
}
CONSTANT_TABLES: Final = ("constant_ops.CONSTANT_OPS", "functions.FUNCTIONS")
"""the same for constants; the first table goes first"""


COMPARISONS: Final = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
JUMPING: Final = COMPARISONS | {"IsNaN", "Sign"}
"""operators that jump, and may still be part of a function that does not (`guards`)"""
JUMPS: Final = "its output jumps, so no bound exists; end the network before it"
UNSUPPORTED: Final = (
    "the operator is not supported; end the network before it, or write it in others"
)


def rule_of(node: Node, inputs: Sequence[Value | None]) -> Rule:
    """The rule of a node, by its operator and the kinds of its inputs."""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    if kind in LAYOUT:
        return cast(Rule, loaded(LAYOUT[kind]))
    has_data = any(isinstance(item, Data) for item in inputs)
    named = DATA if has_data else CONSTANTS
    if kind in named:
        return cast(Rule, loaded(named[kind]))
    names = TABLES if has_data else CONSTANT_TABLES
    tables = (cast(Mapping[str, Rule], loaded(name)) for name in names)
    rule = next((table[kind] for table in tables if kind in table), None)
    if rule is None:
        raise Unsupported(UNSUPPORTED)
    return rule


def loaded(name: str) -> object:
    """The object of this name in a module of this package."""
    module, _, member = name.partition(".")
    return getattr(import_module(f"lipcert.core.lower.{module}"), member)
