"""The frequent operators and their rules, which are loaded when a node needs them.

All other operators are in `rare_operators`.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, cast

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Data, Value
from lipcert.core.reader.records import Node
from lipcert.core.registry import Registry, spelt

REALS: Final = frozenset({1, 10, 11, 16})
"""The real types, by their number in ONNX, as in the attribute `to` of a Cast."""
Rule: TypeAlias = Callable[[Call], Value | list[Value]]


LAYOUT: Final = Registry("lower", {
    "entry_ops": "Gelu",
    "entry_ops.same": "Dropout Identity",
    "function_choices": "Clip",
    "functions.named": "Elu Erf HardSigmoid HardSwish LeakyRelu Relu Sigmoid Softplus Tanh",
    "layout_ops": "Flatten Reshape Squeeze Transpose Unsqueeze",
    "constant_node.constant": "Constant",
    "selection_ops": "Gather Pad Split",
    "selection_ops.slice_": "Slice",
    "size_ops.shape_of": "Shape",
}, spelt)  # fmt: skip
"""Rules of frequent operators that treat constants and data alike."""
DATA: Final = Registry("lower", {
    "axis_ops.normalization": "LayerNormalization",
    "axis_ops.reduction": "ReduceMax ReduceMean ReduceSum",
    "axis_ops.softmax": "LogSoftmax Softmax",
    "conv_ops.conv": "Conv",
    "entry_ops.difference": "Sub",
    "entry_ops.product": "Mul",
    "entry_ops.ratio": "Div",
    "entry_ops.same": "Cast",
    "entry_ops.total": "Add",
    "gemm": "Gemm",
    "image_ops.batch_norm": "BatchNormalization",
    "image_ops.global_pool": "GlobalAveragePool",
    "joining": "Concat",
    "linear_ops.matmul": "MatMul",
    "pool_ops.pool": "AveragePool MaxPool",
}, spelt)  # fmt: skip
"""Rules of frequent operators on values that are computed from the input."""
CONSTANTS: Final = Registry("lower", {"size_ops.joined": "Concat"})
"""The rule of the operator that is frequent on constants, the sizes of a reshape."""


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
    on_constants = not any(isinstance(item, Data) for item in inputs)
    tables = [LAYOUT, CONSTANTS if on_constants else DATA]
    if not any(kind in table for table in tables):
        from lipcert.core.lower import rare_operators as rare  # noqa: PLC0415  for such alone

        tables = [rare.LAYOUT, rare.CONSTANTS if on_constants else rare.DATA]
    for table in tables:
        if kind in table:
            return cast(Rule, table[kind])
    raise Unsupported(UNSUPPORTED)
