"""Which operators have no bound, and what to do about them, in words of those who export models.

Invariant: an operator that the core has a rule for is refused by the core alone, with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final, cast

from lipcert.core.lower.operators import DATA, LAYOUT, TABLES, loaded
from lipcert.diagnostics import EXPORT
from lipcert.errors import Refusal
from lipcert.importer.raw import RawNode

MICROSOFT: Final = "com.microsoft"
_RANDOM: Final = frozenset(
    [
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    ]
)
_CONTROL: Final = frozenset(["Loop", "Scan", "LSTM", "GRU", "RNN", "SequenceMap"])
_DISCRETE: Final = frozenset(
    [
        "And",
        "ArgMax",
        "ArgMin",
        "BitShift",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Ceil",
        "Compress",
        "ConvInteger",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "Equal",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "Hardmax",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "MatMulInteger",
        "Mod",
        "NonMaxSuppression",
        "NonZero",
        "Not",
        "OneHot",
        "Or",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
        "Round",
        "Sign",
        "StringNormalizer",
        "Unique",
        "Xor",
    ]
)
_UNBOUNDED: Final = MappingProxyType(
    {
        "DeformConv": (
            "its sampling positions depend on the data, and its slope on pixel steps",
            "",
        ),
        "Det": ("a determinant has no useful bound", ""),
        "GridSample": ("its sampling positions depend on the data", "use Resize, or a fixed grid"),
        "LinearAttention": ("the fused operator is not supported", "spell it out"),
        "MaxRoiPool": ("its regions depend on the data", ""),
        "MaxUnpool": ("its output jumps where the largest entry of a window changes", ""),
        "ReduceProd": ("a product of many values has no useful bound", ""),
        "RoiAlign": ("its regions depend on the data", ""),
        "Tan": ("it has poles", ""),
    }
)
"""ops that are not imported, with a better reason than that nobody wrote them down"""
_JUMPS: Final = MappingProxyType(
    {
        "Shrink": "it jumps at +-lambd unless bias equals lambd; write soft shrinkage with Relu",
        "ThresholdedRelu": "it jumps from 0 to alpha at alpha; use Relu(x - alpha)",
    }
)
_TRAINING: Final = frozenset(
    [
        "Adagrad",
        "Adam",
        "Gradient",
        "Momentum",
        "NegativeLogLikelihoodLoss",
        "SoftmaxCrossEntropyLoss",
    ]
)


@cache
def _understood() -> frozenset[str]:
    """The operators that the core reads on data."""
    tables = (cast(Mapping[str, object], loaded(name)) for name in TABLES)
    return frozenset().union(LAYOUT, DATA, *tables)


def refusal_of(node: RawNode) -> Refusal | None:
    """Why a node that depends on the data is not understood; None where the core may say so."""

    def refuse(code: str, reason: str, remedy: str = "") -> Refusal:
        return Refusal(code, node.name, node.op_type, reason, remedy)

    if node.op_type in _TRAINING or "training" in node.domain:
        return refuse("LC011", "this is part of a training step", "export for inference")
    if node.op_type == "BatchNormalization" and _is_training(node):
        return refuse(
            "LC011",
            "batch normalization in training mode averages over the batch",
            f"export it in evaluation mode: {EXPORT}",
        )
    if (f"{node.domain}." if node.domain else "") + node.op_type in _understood():
        return None
    if node.domain == MICROSOFT:
        return refuse(
            "LC003",
            "onnxruntime wrote this operator when it optimised the model",
            "import the file from before that optimisation",
        )
    if node.domain:
        return refuse(
            "LC003",
            f"the domain {node.domain!r} is not supported",
            "express the layer in standard ONNX operators",
        )
    if node.op_type == "If":
        return refuse(
            "LC004",
            "it branches on the data, which has no bound here",
            "export one branch alone, as torch.export does",
        )
    if node.op_type in _CONTROL or node.op_type.startswith("Sequence"):
        return refuse(
            "LC004",
            "control flow and recurrence have no bound here",
            "unroll the loop, or export a feed-forward part",
        )
    if node.op_type in _JUMPS:
        return refuse(
            "LC005", "the output jumps, so no Lipschitz bound exists", _JUMPS[node.op_type]
        )
    if node.op_type in _UNBOUNDED:
        return refuse("LC003", *_UNBOUNDED[node.op_type])
    if node.op_type in _DISCRETE:
        return refuse(
            "LC005",
            "the output jumps, so no Lipschitz bound exists",
            "export the network before quantisation or without its discrete head",
        )
    if node.op_type in _RANDOM:
        return refuse("LC003", "random numbers: the output is no function of the input")
    return refuse(
        "LC003", "the operator is not supported", "export with supported operators, or opset 17-20"
    )


def _is_training(node: RawNode) -> bool:
    """Up to version 13, extra outputs ask for training mode."""
    return bool(node.integer("training_mode", 0)) or len(node.output_names) > 1
