"""The supported operators and their rules, which are loaded when a node needs them."""

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, cast

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Data, Value
from lipcert.core.reader.records import Node
from lipcert.core.registry import Registry

REALS: Final = frozenset({1, 10, 11, 16})
"""The real types, by their number in ONNX, as in the attribute `to` of a Cast."""
Rule: TypeAlias = Callable[[Call], Value | list[Value]]


def spelt(kind: str) -> str:
    """Return an operator's name as the name of its function: "gather_nd" for GatherND."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()


LAYOUT: Final = Registry("lower", {
    "attention_op": "Attention",
    "block_ops": "DepthToSpace GatherElements GatherND ScatterElements ScatterND SpaceToDepth",
    "block_ops.triangle": "Trilu",
    "composites": "LpNormalization Mean",
    "composites.cumulated": "CumSum",
    "composites.log_sum": "ReduceLogSum",
    "composites.mean_variance": "MeanVarianceNormalization",
    "constant_ops": "CastLike",
    "contraction": "Einsum",
    "function_choices": "Clip Gelu Shrink Swish",
    "functions.named": "Atan Celu Cos Elu Erf Exp HardSigmoid HardSwish LeakyRelu Log Mish "
    "Reciprocal Relu Selu Sigmoid Sin Softplus Softsign Tanh com.microsoft.FastGelu "
    "com.microsoft.Gelu com.microsoft.QuickGelu",
    "layout_ops": "Flatten Reshape Squeeze Transpose Unsqueeze",
    "casts.same": "Dropout Identity",
    "reals": "Constant",
    "repeat_ops": "Expand Tile",
    "resize_ops.resize": "Resize Upsample",
    "selection_ops": "Gather Pad Split",
    "selection_ops.slice_": "Slice",
    "sequences.cut": "SplitToSequence",
    "sequences.part": "SequenceAt",
    "size_ops.shape_of": "Shape",
    "size_ops.size_of": "Size",
    "stacks.added_blocks": "Col2Im",
}, spelt)  # fmt: skip
"""Rules of operators that treat constants and data alike."""
DATA: Final = Registry("lower", {
    "axis_ops.normalization": "LayerNormalization RMSNormalization",
    "axis_ops.reduction": "ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
    "ReduceSum ReduceSumSquare",
    "axis_ops.softmax": "LogSoftmax Softmax",
    "batch_norm.batch_norm": "BatchNormalization",
    "casts.same": "Cast",
    "conv_ops.conv": "Conv ConvTranspose",
    "fourier_ops": "DFT STFT",
    "entry_ops.difference": "Sub",
    "entry_ops.negative": "Neg",
    "entry_ops.prelu": "PRelu",
    "entry_ops.product": "Mul",
    "entry_ops.ratio": "Div",
    "entry_ops.total": "Add Sum",
    "functions.named": "Abs Sqrt",
    "gemm": "Gemm",
    "image_ops.global_pool": "GlobalAveragePool GlobalLpPool GlobalMaxPool",
    "image_ops.image_normalization": "GroupNormalization InstanceNormalization",
    "image_ops.local_response": "LRN",
    "joining": "Concat",
    "linear_ops.matmul": "MatMul",
    "pair_ops.choice": "Where",
    "pair_ops.extremum": "Max Min",
    "pair_ops.power": "Pow",
    "pool_ops.pool": "AveragePool LpPool MaxPool",
    "recurrence.recurrent": "GRU LSTM RNN",
    "selection_ops": "OneHot",
    "selection_ops.top": "TopK",
    "truth.both": "And Or",
    "truth.comparison": "Equal Greater GreaterOrEqual Less LessOrEqual",
    "truth.largest_place": "ArgMax ArgMin",
    "truth.opposite": "Not",
}, spelt)  # fmt: skip
"""Rules of operators on values that are computed from the input."""


COMPARISONS: Final = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
JUMPING: Final = COMPARISONS | {"IsNaN", "Sign"}
"""Operators that jump, but may be part of a function that does not (`guards`)."""
JUMPS: Final = "its output jumps, so no bound exists; end the network before it"
UNSUPPORTED: Final = (
    "the operator is not supported; end the network before it, or write it in others"
)


def rule_of(node: Node, inputs: Sequence[Value | None]) -> Rule:
    """Return the rule of a node, by its operator and the kinds of its inputs."""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    if kind in LAYOUT:
        return cast(Rule, LAYOUT[kind])
    table = DATA
    if not any(isinstance(item, Data) for item in inputs):
        from lipcert.core.lower.reals import CONSTANTS  # noqa: PLC0415  for such alone

        table = CONSTANTS
    if kind not in table:
        raise Unsupported(UNSUPPORTED)
    return cast(Rule, table[kind])
