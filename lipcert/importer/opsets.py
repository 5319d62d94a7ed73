"""Which ONNX ops are understood, up to which version of their definition, and why others are not.

Semantics are dispatched on the `since_version` of an op's schema. Invariant: a definition newer
than the ones listed here is refused, because nobody has compared its meaning with the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lipcert.errors import Refusal
from lipcert.importer.raw import RawNode

MICROSOFT: Final = "com.microsoft"
_MICROSOFT_OPS: Final = frozenset({"Gelu", "FastGelu", "QuickGelu"})

# op: (oldest, newest) since_version with a known meaning
_VERSIONS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "Abs": (1, 13),
        "Add": (6, 14),
        "Atan": (7, 22),
        "Attention": (23, 25),
        "AveragePool": (1, 22),
        "BatchNormalization": (1, 15),
        "Cast": (6, 25),
        "CastLike": (15, 25),
        "Celu": (12, 12),
        "Clip": (1, 13),
        "Concat": (1, 13),
        "Conv": (1, 22),
        "ConvTranspose": (1, 22),
        "Cos": (7, 22),
        "CumSum": (11, 14),
        "DepthToSpace": (1, 13),
        "Div": (6, 14),
        "Dropout": (6, 22),
        "Einsum": (12, 28),
        "Elu": (1, 22),
        "Erf": (9, 13),
        "Exp": (1, 13),
        "Expand": (8, 13),
        "Flatten": (1, 25),
        "Gather": (1, 13),
        "GatherElements": (11, 13),
        "GatherND": (11, 13),
        "Gelu": (20, 20),
        "Gemm": (6, 13),
        "GlobalAveragePool": (1, 22),
        "GlobalLpPool": (2, 22),
        "GlobalMaxPool": (1, 22),
        "GroupNormalization": (18, 21),
        "HardSigmoid": (1, 22),
        "HardSwish": (14, 22),
        "Identity": (1, 25),
        "InstanceNormalization": (6, 22),
        "LRN": (1, 13),
        "LayerNormalization": (17, 17),
        "LeakyRelu": (1, 16),
        "Log": (1, 13),
        "LogSoftmax": (1, 13),
        "LpNormalization": (1, 22),
        "LpPool": (2, 22),
        "MatMul": (1, 13),
        "Max": (1, 13),
        "MaxPool": (1, 22),
        "Mean": (1, 13),
        "MeanVarianceNormalization": (9, 13),
        "Min": (1, 13),
        "Mish": (18, 22),
        "Mul": (6, 14),
        "Neg": (1, 13),
        "PRelu": (6, 16),
        "Pad": (2, 25),
        "Pow": (7, 15),
        "RMSNormalization": (23, 23),
        "Reciprocal": (1, 13),
        "ReduceL1": (1, 18),
        "ReduceL2": (1, 18),
        "ReduceLogSum": (1, 18),
        "ReduceLogSumExp": (1, 18),
        "ReduceMax": (1, 20),
        "ReduceMean": (1, 18),
        "ReduceMin": (1, 20),
        "ReduceSum": (1, 13),
        "ReduceSumSquare": (1, 18),
        "Relu": (1, 14),
        "Reshape": (1, 25),
        "Resize": (10, 19),
        "Selu": (1, 22),
        "Sigmoid": (1, 13),
        "Sin": (7, 22),
        "Slice": (1, 13),
        "Softmax": (1, 13),
        "Softplus": (1, 22),
        "Softsign": (1, 22),
        "SpaceToDepth": (1, 13),
        "Split": (2, 18),
        "Sqrt": (1, 13),
        "Squeeze": (1, 25),
        "Sub": (6, 14),
        "Sum": (1, 13),
        "Swish": (24, 24),
        "Tanh": (1, 13),
        "Tile": (6, 13),
        "TopK": (1, 24),
        "Transpose": (1, 25),
        "Trilu": (14, 14),
        "Unsqueeze": (1, 25),
        "Upsample": (7, 10),
        "Where": (9, 16),
    }
)

RANDOM: Final = frozenset(
    [
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    ]
)
_CONTROL: Final = frozenset(["If", "Loop", "Scan", "LSTM", "GRU", "RNN", "SequenceMap"])
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
        "DequantizeLinear": (
            "its input is quantised, so no Lipschitz bound exists",
            "export the network before quantisation",
        ),
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


def refusal_of(node: RawNode) -> Refusal | None:
    """Why a node that depends on the data is not understood; None if it is."""

    def refuse(code: str, reason: str, remedy: str = "") -> Refusal:
        return Refusal(code, node.name, node.op_type, reason, remedy)

    if node.op_type in _TRAINING or "training" in node.domain:
        return refuse("LC011", "this is part of a training step", "export for inference")
    if node.domain == MICROSOFT and node.op_type in _MICROSOFT_OPS:
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
    if node.op_type in RANDOM:
        return refuse("LC003", "random numbers: the output is no function of the input")
    if node.op_type == "BatchNormalization" and _is_training(node):
        return refuse(
            "LC011",
            "batch normalization in training mode averages over the batch",
            "call model.eval() before torch.onnx.export",
        )
    return _version_refusal(node)


def _is_training(node: RawNode) -> bool:
    """Up to version 13, extra outputs ask for training mode; up to 6, the lack of `is_test`."""
    if 0 < node.since_version < 7 and node.integer("is_test", 0) == 0:
        return True
    return bool(node.integer("training_mode", 0)) or len([o for o in node.outputs if o]) > 1


def _version_refusal(node: RawNode) -> Refusal | None:
    versions = _VERSIONS.get(node.op_type)
    if versions is None or not node.since_version:
        reason = "the operator is not supported"
    elif not versions[0] <= node.since_version <= versions[1]:
        reason = (
            f"version {node.since_version} of the operator is not supported"
            f" (only {versions[0]} to {versions[1]})"
        )
    else:
        return None
    return Refusal(
        "LC003", node.name, node.op_type, reason, "export with supported operators, or opset 17-20"
    )
