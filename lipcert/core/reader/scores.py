"""Translate operators of ai.onnx.ml, as converters of scikit-learn write them, to standard ones.

    LinearRegressor, LinearClassifier      Gemm; then Sigmoid or Softmax
    Scaler                                 Sub and Mul
    Imputer of NaN                         Identity, as real numbers are not NaN
    Normalizer                             LpNormalization; for probabilities, their shares
    ArrayFeatureExtractor                  Gather

Coefficients and intercepts become initializers, and so parameters like any others; the numbers of a
Scaler become constants. The input of the Sigmoid or Softmax with output NAME is called NAME.scores;
where it consists of −s and s, s is called NAME.score. A LinearClassifier keeps its output of
labels, which jump. A node that is not understood in every detail stays as it is.

These converters often leave the width of the input open: `with_width` finds it in the file.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lipcert.core.reader.records import Attribute, Input, Node, Tensor

_FLOAT: Final = 1
"""The number of float32 in the attribute `to` of a Cast."""
_KINDS: Final = {
    "FLOAT": "replaced_value_float",
    "FLOATS": "coefficients imputed_value_floats intercepts offset scale",
    "INT": "multi_class targets",
    "INTS": "classlabels_ints",
    "STRING": "norm post_transform",
    "STRINGS": "classlabels_strings",
}
"""The attributes that are understood, by kind."""
_AFTER: Final = {b"NONE": "", b"LOGISTIC": "Sigmoid", b"SOFTMAX": "Softmax"}
"""The operator for each supported post_transform; the others are not defined everywhere."""

_KEEPING: Final = frozenset({"Add", "Cast", "Div", "Identity", "LpNormalization", "Mul", "Sub"})
"""Operators whose outputs are as wide as their input."""


def with_width(source: Input, nodes: Iterable[Node], initializers: Mapping[str, Tensor]) -> Input:
    """Return the input; if its width is open, with that of the first matrix that multiplies it.

    The reading describes examples of this width, and no others. If the file does not fit them, a
    later step refuses it; so no bound rests on the choice.
    """
    first, *rest = source.dims or ("",)
    if len(rest) != 1 or isinstance(rest[0], int):
        return source
    wide = {source.name}
    for node in nodes:
        if wide.isdisjoint(node.inputs):
            continue
        if node.op_type in _KEEPING:
            wide.update(node.outputs)
        elif node.op_type in {"Gemm", "MatMul"} and node.inputs[1] in initializers:
            dims = initializers[node.inputs[1]].dims
            turned = "transB" in node.attributes and bool(node.attributes["transB"].value)
            return replace(source, dims=(first, dims[-1 if turned else 0])) if dims else source
    return source


def score_names(result: str) -> tuple[str, str]:
    """Return the names of scores below a Sigmoid or Softmax, and of s where they are −s and s."""
    return f"{result}.scores", f"{result}.score"


class Translator:
    """Translates nodes. initializers: those of the model, and those made from attributes so far."""

    def __init__(self, initializers: Mapping[str, Tensor], taken: Iterable[str]) -> None:
        self.initializers = dict(initializers)
        self._taken = {*initializers, *taken}
        self._constant = {"", *initializers}
        self._shares: dict[str, str] = {}
        self._rules = {
            "ArrayFeatureExtractor": self._chosen,
            "Imputer": self._imputed,
            "LinearClassifier": self._classified,
            "LinearRegressor": self._regressed,
            "Normalizer": self._normalised,
            "Scaler": self._rescaled,
        }

    def nodes(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Yield the nodes, each with a translation replaced by it."""
        for node in nodes:
            if self._constant.issuperset(node.inputs):
                self._constant.update(node.outputs)
            rule = self._rules.get(node.op_type) if node.domain == "ai.onnx.ml" else None
            count = 1 + (node.op_type == "ArrayFeatureExtractor")
            yield from (rule and len([*filter(None, node.inputs)]) == count and rule(node)) or [
                node
            ]

    def _regressed(self, node: Node) -> list[Node] | None:
        """X·Wᵀ + b, with a row of W for each target."""
        known = _known(node, "coefficients", "intercepts", "targets", "post_transform")
        if known is None or known.get("post_transform", b"NONE") != b"NONE":
            return None
        rows, offsets = known.get("targets", 1), known.get("intercepts", ())
        matrix = _matrix(known, rows)
        if matrix is None or len(offsets) not in {0, rows}:
            return None
        return self._scores(node, matrix, offsets, node.outputs[0])

    def _classified(self, node: Node) -> list[Node] | None:
        """X·Wᵀ + b, with a row of W for each class, or σ or softmax of that.

        Rows −w and w are one parameter w, as scikit-learn trains it, with the scores −s and s. A
        single row means the same, but is translated only with σ, where ONNX and onnxruntime agree.
        """
        labels = ("classlabels_ints", "classlabels_strings")
        words = ("coefficients", "intercepts", "post_transform", "multi_class", *labels)
        known = _known(node, *words)
        label, result = (*node.outputs, "")[:2]
        if known is None or not result:
            return None
        offsets = known.get("intercepts", ())
        rows, matrix = len(offsets), _matrix(known, len(offsets))
        after = _AFTER.get(known.get("post_transform", b"NONE"))
        if matrix is None or after is None:
            return None
        count = max(len(known.get(name, ())) for name in labels)
        if count < 2 or (rows == 1 and (after != "Sigmoid" or count != 2)):
            return None
        if rows == 2 and (matrix[0] == -matrix[1]).all() and offsets[0] == -offsets[1]:
            rows, matrix, offsets = 1, matrix[1:], offsets[1:]
        both, one = score_names(result)
        scores = self._fresh(both) if after else result
        raw = self._fresh(one) if rows == 1 else scores
        made = self._scores(node, matrix, offsets, raw)
        if rows == 1:
            negative = self._fresh(f"{raw}.negative")
            made.append(_made(node, "Neg", (raw,), negative))
            made.append(_made(node, "Concat", (negative, raw), scores, axis=1))
        if after == "Sigmoid":
            made.append(_made(node, after, (scores,), result))
            self._shares[result] = "" if rows == 1 else scores
        elif after == "Softmax":
            made.append(_made(node, after, (scores,), result, axis=1))
            self._shares[result] = ""
        return [*made, replace(node, outputs=(label,))] if label else made

    def _scores(self, node: Node, matrix: Any, offsets: Sequence[float], result: str) -> list[Node]:
        name = node.name or result
        inputs = [self._fresh(f"{name}.{part}") for part in ("input", "coefficients", "intercepts")]
        self.initializers[inputs[1]] = _tensor(matrix)
        if len(offsets):
            self.initializers[inputs[2]] = _tensor(offsets)
        else:
            inputs.pop()
        return [
            _made(node, "Cast", node.inputs, inputs[0], to=_FLOAT),
            _made(node, "Gemm", inputs, result, transB=1),
        ]

    def _rescaled(self, node: Node) -> list[Node] | None:
        """(X − offset)·scale, with a number for each feature, or one for all."""
        known = _known(node, "offset", "scale")
        if known is None or len(known) < 2 or len(known["offset"]) != len(known["scale"]):
            return None
        name = node.name or node.outputs[0]
        real, offset, centred, scale = (
            self._fresh(f"{name}.{part}") for part in ("input", "offset", "centred", "scale")
        )
        return [
            _made(node, "Cast", node.inputs, real, to=_FLOAT),
            _made(node, "Constant", (), offset, value=_tensor(known["offset"])),
            _made(node, "Sub", (real, offset), centred),
            _made(node, "Constant", (), scale, value=_tensor(known["scale"])),
            _made(node, "Mul", (centred, scale), node.outputs[0]),
        ]

    def _imputed(self, node: Node) -> list[Node] | None:
        known = _known(node, "imputed_value_floats", "replaced_value_float")
        if known is None or not math.isnan(known.get("replaced_value_float", 0.0)):
            return None
        return [_made(node, "Identity", node.inputs, node.outputs[0])]

    def _normalised(self, node: Node) -> list[Node] | None:
        """x/‖x‖; for the norm 1, probabilities divided by their sum.

        The outputs of Softmax have the sum 1, and so have σ(−s) and σ(s). Other σ(s) = e^z, with
        z = ln σ(s) = −ln(1 + e^(−s)), divided by their sum are softmax(z).
        """
        known, result = _known(node, "norm"), node.outputs[0]
        norm = (known or {}).get("norm", b"MAX")
        if known is None or norm not in {b"L1", b"L2"}:
            return None
        scores = self._shares.get(node.inputs[0]) if norm == b"L1" else None
        if scores is None:
            order = int(norm[1:])
            return [_made(node, "LpNormalization", node.inputs, result, axis=1, p=order)]
        if not scores:
            return [_made(node, "Identity", node.inputs, result)]
        names = [self._fresh(f"{result}.{word}") for word in ("negative", "softplus", "logarithm")]
        return [
            _made(node, "Neg", (scores,), names[0]),
            _made(node, "Softplus", names[:1], names[1]),
            _made(node, "Neg", names[1:2], names[2]),
            _made(node, "Softmax", names[2:], result, axis=1),
        ]

    def _chosen(self, node: Node) -> list[Node] | None:
        """Select entries along the last axis of a value that depends on the input."""
        value, index = node.inputs
        places = self.initializers.get(index)
        if places is None or places.dtype != "int64" or value in self._constant:
            return None
        if _known(node) is None or not places.size or (places.values() < 0).any():
            return None
        flat, name = Tensor("int64", (places.size,), places.content), self._fresh(f"{index}.flat")
        return [
            _made(node, "Constant", (), name, value=flat),
            _made(node, "Gather", (value, name), node.outputs[0], axis=-1),
        ]

    def _fresh(self, name: str) -> str:
        while name in self._taken:
            name += "'"
        self._taken.add(name)
        return name


def _known(node: Node, *names: str) -> dict[str, Any] | None:
    """Return the attributes' values by name; None if one has another name or kind."""
    given = node.attributes
    if not all(name in names and name in _KINDS[given[name].kind].split() for name in given):
        return None
    return {name: item.value for name, item in given.items()}


def _matrix(known: Mapping[str, Any], rows: int) -> Any:
    """Return the coefficients as a matrix of this many rows; None if they do not fit."""
    numbers = np.asarray(known.get("coefficients", ()), np.float32)
    return (
        numbers.reshape(rows, -1) if rows > 0 < numbers.size and not numbers.size % rows else None
    )


def _tensor(numbers: Any) -> Tensor:
    exact = np.asarray(numbers, "<f4")  # the type in which attributes are stored
    return Tensor("float32", exact.shape, exact.tobytes())


def _made(node: Node, kind: str, inputs: Sequence[str], output: str, **given: Any) -> Node:
    """Return a new standard node that has the name of `node`."""
    kinds = {int: "INT", Tensor: "TENSOR"}
    attributes = {name: Attribute(kinds[type(item)], item) for name, item in given.items()}
    return Node(node.name, kind, "", tuple(inputs), (output,), attributes)
