"""Survey: list every reason to refuse a model, so that its author can repair them all at once.

Each refusal says what to do, in the terms of model exporters. Operators without a bound are refused
here; only the core refuses operators for which it has a rule, with its own reason, and onnxruntime
checks whether a node is well formed. If the inputs of a node are unknown because an earlier node is
refused, only its operator is judged. Numbers that are not finite matter only if an output depends
on them; −∞ is refused where it is used, as the mask of an attention may hold it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

import numpy as np

from lipcert.core.lower import operators, rare_operators
from lipcert.core.lower.errors import MixingError, ReadsAcrossError, Unsupported
from lipcert.core.lower.lower import Walk
from lipcert.core.lower.operators import JUMPING, JUMPS, UNSUPPORTED
from lipcert.core.lower.values import FIXED, Data
from lipcert.core.reader.records import Model, Node, Tensor
from lipcert.diagnostics import EXPORT
from lipcert.errors import Refusal
from lipcert.importer.nodes import label, needed_nodes, output_names

MICROSOFT: Final = "com.microsoft"
_Reason = tuple[str, str, str]
"""Code, reason and remedy of a refusal."""
_JUMPS: Final = "the output jumps, so no Lipschitz bound exists"
_TRAINING: Final = ("LC011", "this is part of a training step", "export for inference")
_SMOOTH: Final = (
    "export the network before quantisation and without its discrete head (--output), and weigh "
    "inside by softmax or sigmoid (sparsemax, masks, experts) or sums of Relu (splines)"
)
_DISCRETE: Final = ("LC005", _JUMPS, _SMOOTH)
_RANDOM: Final = ("LC003", "random numbers: the output is not a function of the input", "")
_CONTROL: Final = (
    "LC004",
    "control flow has no bound here",
    "unroll the loop, or export a feed-forward part (nn.EmbeddingBag of ids [examples, count]: "
    "lipcert.training.make_trainable(module, mechanism) puts a table and a mean in its place)",
)
_SUPPORTED: Final = "export with supported operators, or opset 17-20"
_UNKNOWN: Final = ("LC003", "the operator is not supported", _SUPPORTED)
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
        ("LC003", "no rule bounds it", "use Resize, or a product with a constant matrix"),
    "If": ("LC004", "it branches on the data, so it has no bound here",
           "export one branch alone, as torch.export does"),
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


_SHAPES: Final = frozenset({"Shape", "Size"})
_STATIC: Final = (
    "export with axis 0 for the batch and fixed sizes for all other axes; in a Resize, give scales,"
    " not sizes; in skl2onnx, FloatTensorType([None, features])"
)
_WELL: Final = "re-export the model; its nodes are not valid ONNX"
_STATED: Final = "export it again, or drop the stated shapes (graph.value_info, graph.output)"
_PLAIN: Final = "write the layer in plain operators, or report the file"
_REPAIR: Final = (
    "−∞ may only mask the scores of softmax(scores + mask)·values, where it has to let every query"
    " see a token, such as itself; compute what depends on no input (distances of tokens in T5,"
    " whose log 0 a Where leaves out) before the export, and keep it in a buffer; repair the rest"
)
_SCATTERED: Final = "add up by a product with a constant matrix of zeros and ones (adjacency @ x)"
_FIXED_BATCH: Final = "take sizes from shapes only, or export with a fixed batch size of 1"
ACROSS: Final = "use a layer that treats every example separately"
_ONE_AXIS: Final = (
    "keep one axis for the batch only, as in x.reshape(x.shape[0], ...); compute sizes in whole "
    "numbers: x.shape[0] // 4, since int(x.shape[0] / 4) is a fixed number in the file"
)
_ROWS: Final = (
    "choose rows of a constant table (axis 0) by them, compare them with constants, or cast them"
    " to floats first"
)
_ALL: Final = (
    "places of largest entries jump: weigh all by a softmax (experts, routes), or choose by values"
)
_NUMBERS: Final = "feed floats, or ids of embeddings as int64"
_SMALLER: Final = "import a smaller network, or one with smaller inputs"
_CODES: Final = (
    ("LC005", _SMOOTH, JUMPS, "it rounds to whole numbers"),
    ("LC010", "export all inputs with one batch axis, axis 0", "equally many examples"),
    ("LC005", "write soft shrinkage with Relu", "it jumps at lambd"),
    ("LC003", _SUPPORTED, "operator set", UNSUPPORTED),
    ("LC005", _ALL, "is a result without a bound"),
    ("LC006", _ROWS, "it computes with whole numbers", "it selects by numbers"),
    ("LC014", _REPAIR, "a constant is not"),
    ("LC016", _WELL, "inputs and attributes do not fit", "epsilon is negative"),
    ("LC006", _NUMBERS, "does not hold numbers", "is of type uint64"),
    ("LC008", _STATIC, "is not of fixed shape behind", "carry the batch in different ways", FIXED),
    ("LC007", _ONE_AXIS, "it drops the batch axis", "along the batch axis"),
    ("LC016", _STATED, "the file states"),
    ("LC011", f"export it in evaluation mode: {EXPORT}", "training mode"),
    ("LC003", "export with explicit pads", "automatic padding"),
    ("LC007", _ONE_AXIS, "the shape does not fit", "a reshape changes", "a reshape spreads"),
    ("LC008", _FIXED_BATCH, "the size of the batch"),
    ("LC028", _SCATTERED, "its updates are combined", "it writes twice to a place"),
    ("LC028", "no rule bounds trained exponents: write a number, as x ** 3", "its exponent is not"),
    ("LC008", "choose an output that does", "the output does not depend on the input"),
)
"""code, remedy, and words in the core's message"""


def distinct(refusals: Iterable[Refusal]) -> tuple[Refusal, ...]:
    """Remove repeated refusals: keep one for each code, node and, without a node, reason."""
    kept: dict[tuple[str, str, str], Refusal] = {}
    for item in refusals:
        kept.setdefault((item.code, item.node, "" if item.node else item.reason), item)
    return tuple(kept.values())


def operator_refusals(model: Model, outputs: Sequence[str]) -> Iterator[Refusal]:
    """Yield refusals of operators without a bound between any input and these outputs."""
    data = {item.name for item in model.inputs}
    for node in needed_nodes(model, *outputs):
        if node.op_type in _SHAPES or data.isdisjoint(node.inputs):
            continue
        data.update(output_names(node))
        # other nodes decide whether these are bounded
        depends = node.op_type in JUMPING | {"If"} and not node.domain
        if not depends and (refusal := refusal_of(node)) is not None:
            yield refusal


def refused(error: Unsupported, *, on_data: bool = True) -> Refusal:
    """Return a refusal of the core with code and remedy. on_data: about values, not sizes."""
    found = error.node if isinstance(error.node, Node) else None
    node, op = ("", "") if found is None else (label(found), found.op_type)
    is_general = on_data or error.reason == UNSUPPORTED
    better = refusal_of(found) if found is not None and is_general else None
    if better is not None:
        return better
    if isinstance(error, ReadsAcrossError):
        return Refusal("LC007", node, op, error.reason, ACROSS)
    if isinstance(error, MixingError):
        return Refusal("LC007", node, op, error.reason, _ONE_AXIS)
    known = (item[:2] for item in _CODES if any(text in error.reason for text in item[2:]))
    code, remedy = next(known, ("LC028", _PLAIN))
    if "a tensor has more than" in error.reason:
        code, remedy = ("LC002" if on_data else "LC016"), _SMALLER
    return Refusal(code, node, op, error.reason, remedy)


def node_refusals(model: Model, *outputs: str, batched: bool) -> Iterator[Refusal]:
    """Yield refusals of all nodes that cannot be read, as far as their inputs are known."""
    try:
        walk = Walk.of(model, *outputs, batched=batched)
    except Unsupported as error:
        yield refused(error)
        return
    lost: set[str] = set()
    for position, node in walk.nodes:
        if lost.isdisjoint(filter(None, node.inputs)):
            try:
                walk.node(node, position)
            except Unsupported as error:
                given = (walk.values.get(name) for name in node.inputs)
                on_data = error.node is not node or any(isinstance(item, Data) for item in given)
                yield refused(error, on_data=on_data)
            else:
                continue
        lost.update(filter(None, node.outputs))
    for output in outputs:
        if output not in lost:
            try:
                walk.known(output)
            except Unsupported as error:
                yield refused(error)
