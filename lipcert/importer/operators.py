"""Which nodes the importer refuses: operators without a bound, and tensors that are not finite.

Each refusal says what to do, in the terms of model exporters. Invariant: only the core refuses
operators for which it has a rule, with its own reason. onnxruntime checks whether a node is well
formed. Numbers that are not finite matter only if an output depends on them; −∞ is refused where it
is used, as the mask of an attention may hold it.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Final

import numpy as np

from lipcert.core.lower import operators, rare_operators
from lipcert.core.reader.records import Model, Node, Tensor
from lipcert.errors import Refusal
from lipcert.importer.nodes import label

MICROSOFT: Final = "com.microsoft"
_Reason = tuple[str, str, str]
"""Code, reason and remedy of a refusal."""
_JUMPS: Final = "the output jumps, so no Lipschitz bound exists"
_TRAINING: Final = ("LC011", "this is part of a training step", "export for inference")
_DISCRETE: Final = (
    "LC005",
    _JUMPS,
    "export the network before quantisation or without its discrete head",
)
_RANDOM: Final = ("LC003", "random numbers: the output is not a function of the input", "")
_CONTROL: Final = (
    "LC004",
    "control flow has no bound here",
    "unroll the loop, or export a feed-forward part (nn.EmbeddingBag: nn.Embedding and a mean over"
    " axis 1)",
)
_UNKNOWN: Final = (
    "LC003",
    "the operator is not supported",
    "export with supported operators, or opset 17-20",
)
_OPTIMISED: Final = (
    "LC003",
    "onnxruntime wrote this operator when it optimised the model",
    "import the file from before that optimisation",
)
_REASONS: Final[Mapping[str, _Reason]] = {
    **dict.fromkeys(
        ["Adagrad", "Adam", "Gradient", "Momentum", "NegativeLogLikelihoodLoss",
         "SoftmaxCrossEntropyLoss"], _TRAINING,
    ),
    **dict.fromkeys(
        ["And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
         "BitwiseXor", "Ceil", "Compress", "ConvInteger", "DequantizeLinear",
         "DynamicQuantizeLinear", "Equal", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "IsInf",
         "IsNaN", "Less", "LessOrEqual", "MatMulInteger", "Mod", "NonMaxSuppression", "NonZero",
         "Not", "OneHot", "Or", "QLinearConv", "QLinearMatMul", "QuantizeLinear", "Round", "Sign",
         "StringNormalizer", "Unique", "Xor"], _DISCRETE,
    ),
    **dict.fromkeys(
        ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
         "RandomUniformLike"], _RANDOM,
    ),
    **dict.fromkeys(["Loop", "Scan", "SequenceMap"], _CONTROL),
    **dict.fromkeys(["MaxRoiPool", "RoiAlign"], ("LC003", "its regions depend on the data", "")),
    "DeformConv":
        ("LC003", "its sampling positions depend on the data, and its slope on pixel steps", ""),
    "Det": ("LC003", "a determinant has no useful bound", ""),
    "GridSample":
        ("LC003", "its sampling positions depend on the data", "use Resize, or a fixed grid"),
    "If": ("LC004", "it branches on the data, so it has no bound here",
           "export one branch alone, as torch.export does"),
    "LinearAttention": ("LC003", "the fused operator is not supported", "use plain operators"),
    "MaxUnpool": ("LC003", "its output jumps where the largest entry of a window changes", ""),
    "ReduceProd": ("LC003", "a product of many values has no useful bound", ""),
    **dict.fromkeys(
        ["SequenceAt", "SequenceConstruct", "SequenceLength", "SplitToSequence"],
        ("LC004", "sequences are not followed",
         "cut with Split, as the optimiser of torch.onnx writes it"),
    ),
    "Shrink": ("LC005", _JUMPS,
               "it jumps at +-lambd unless bias equals lambd; write soft shrinkage with Relu"),
    "Tan": ("LC003", "it has poles", ""),
    "ThresholdedRelu":
        ("LC005", _JUMPS, "it jumps from 0 to alpha at alpha; use Relu(x - alpha)"),
}  # fmt: skip
"""Why operators of the standard domain have no bound, if there is a more specific reason than that
no rule exists."""
_OF_SCORES: Final = (
    "of ai.onnx.ml linear scores, scalers and norms are read, where ONNX defines what they compute",
    "write the layer in standard ONNX operators",
)
_LABELS: Final = (
    "LC005",
    "labels jump (of scores, post_transform NONE, LOGISTIC and SOFTMAX are read)",
    "choose the scores: --output NAME",
)
_LEARNED: Final[Mapping[str, _Reason]] = {
    "Binarizer": ("LC005", "it jumps at its threshold", "end the network before it"),
    **dict.fromkeys(["LabelEncoder", "LinearClassifier", "ZipMap"], _LABELS),
    "Normalizer": ("LC003", "ONNX and onnxruntime disagree on what the norm MAX is", "use L2"),
    **dict.fromkeys(
        ["TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"],
        ("LC005", "trees jump between constants, and no gradient trains them", "use a network"),
    ),
    **dict.fromkeys(
        ["SVMClassifier", "SVMRegressor"],
        ("LC003", "support vectors are not read", "a linear machine: LinearSVC, LinearSVR"),
    ),
}
"""The same for operators of ai.onnx.ml."""


def refusal_of(node: Node) -> Refusal | None:
    """Return why a node that depends on the data is refused; None if the core decides."""
    words = _reason(node)
    return words and Refusal(words[0], label(node), node.op_type, words[1], words[2])


def _reason(node: Node) -> _Reason | None:
    kind, domain = node.op_type, node.domain
    if "training" in domain or _REASONS.get(kind) is _TRAINING:
        return _TRAINING
    name = f"{domain}.{kind}" if domain else kind
    if any(name in own.LAYOUT or name in own.DATA for own in (operators, rare_operators)):
        return None
    if domain:
        reason = f"the domain {domain!r} is not supported"
        remedy = "express the layer in standard ONNX operators"
        if domain == "ai.onnx.ml":
            return _LEARNED.get(kind, ("LC003", *_OF_SCORES))
        return _OPTIMISED if domain == MICROSOFT else ("LC003", reason, remedy)
    return _REASONS.get(kind, _CONTROL if kind.startswith("Sequence") else _UNKNOWN)


def number_refusals(model: Model, live: Set[str]) -> Iterator[Refusal]:
    """Yield the stored tensors behind these values that are not finite or not numeric."""
    for name, tensor in model.initializers.items():
        if name in live:
            yield from _of_tensor(tensor, f"initializer {name!r}")
    for node in model.nodes:
        if not live.isdisjoint(node.outputs):
            for name, item in node.attributes.items():
                if isinstance(item.value, Tensor):
                    where = f"attribute {name!r} of node {label(node)!r}"
                    yield from _of_tensor(item.value, where)


def _of_tensor(tensor: Tensor, where: str) -> Iterator[Refusal]:
    if tensor.dtype == "unread":
        yield Refusal("LC016", "", "", f"{where}: its data type is not a plain number type")
    elif tensor.is_float and not (tensor.values() < np.inf).all():
        reason, remedy = "it holds NaN or infinite numbers", "retrain, or repair the file"
        yield Refusal("LC014", "", "", f"{where}: {reason}", remedy)
