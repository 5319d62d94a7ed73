"""The operators that are understood, and the rule of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from lipcert.core.lower import axis_ops, layout_ops, linear_ops, selection_ops
from lipcert.core.lower.call import Call
from lipcert.core.lower.constant_ops import CONSTANT_OPS, cast_like
from lipcert.core.lower.entry_ops import ENTRY_OPS
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.joining import concat
from lipcert.core.lower.size_ops import shape_of, size_of
from lipcert.core.lower.values import Data, Value
from lipcert.core.reader.records import Node

Rule: TypeAlias = Callable[[Call], Value | list[Value]]


def _same(call: Call) -> Value:
    """Identity, Dropout at inference, and types of data, which are all real here."""
    kind = call.node.op_type
    if kind == "Dropout":
        call.real("ratio", 0.5), call.integer("seed", 0)
        if call.has(2) and call.constant(2).lo.any():
            raise Unsupported("dropout in training mode")
        if call.version >= 12 and call.has(1):
            call.number(1)
    if kind == "Cast" and call.integer("to", 0) not in {1, 10, 11, 16}:
        raise Unsupported("it rounds to whole numbers")
    if kind == "Cast":
        call.integer("saturate", 1), call.text("round_mode", "up")
    return call.value(0)


_LAYOUT: Final[Mapping[str, Rule]] = {
    "CastLike": cast_like,
    "Dropout": _same,
    "Expand": layout_ops.expand,
    "Flatten": layout_ops.flatten,
    "Gather": selection_ops.gather,
    "Identity": _same,
    "Pad": selection_ops.pad,
    "Reshape": layout_ops.reshape,
    "Resize": selection_ops.resize,
    "Shape": shape_of,
    "Size": size_of,
    "Slice": selection_ops.slice_,
    "Split": selection_ops.split,
    "Squeeze": layout_ops.squeeze,
    "Tile": layout_ops.tile,
    "Transpose": layout_ops.transpose,
    "Unsqueeze": layout_ops.unsqueeze,
    "Upsample": selection_ops.resize,
}
_DATA: Final[Mapping[str, Rule]] = {
    **ENTRY_OPS,
    **dict.fromkeys(["AveragePool", "LpPool", "MaxPool"], axis_ops.pool),
    **dict.fromkeys(["GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"], axis_ops.global_pool),
    **dict.fromkeys(
        ["ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum",
         "ReduceSumSquare"], axis_ops.reduction,
    ),
    **dict.fromkeys(["Softmax", "LogSoftmax"], axis_ops.softmax),
    **dict.fromkeys(
        ["GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"],
        axis_ops.normalization,
    ),
    **dict.fromkeys(["Conv", "ConvTranspose"], linear_ops.conv),
    "BatchNormalization": linear_ops.batch_norm,
    "Cast": _same,
    "Concat": concat,
    "Gemm": linear_ops.gemm,
    "MatMul": linear_ops.matmul,
    "TopK": axis_ops.top,
}  # fmt: skip


def rule_of(node: Node, inputs: Sequence[Value | None]) -> Rule:
    """What to do with a node, by its operator and by what it is computed from."""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    table = _DATA if any(isinstance(item, Data) for item in inputs) else CONSTANT_OPS
    rule = _LAYOUT.get(kind) or table.get(kind)
    if rule is None:
        raise Unsupported("the operator is not supported")
    return rule
