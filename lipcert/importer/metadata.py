"""Provenance: what the exporter noted about parameters, buffers and layers in evaluation mode.

The metadata of the graph and its nodes say which tensors of the file are trained parameters, and
under which names. torch.export writes a graph signature (placeholder, kind, target) and, per node,
the call it came from; without a signature the names of initializers are taken for those of
parameters.

Invariant: a tensor is only ever called a parameter of the network if it holds that parameter's
own numbers; tensors into which an optimiser folded others are reported as folded.

`eval_layers` finds layers that a file computes differently from a network in training mode. Among
the nodes that the output is computed from, these show that a layer was exported in evaluation mode:

* nodes BatchNormalization (frozen statistics, where training uses those of the batch) and
  Dropout (the identity, where training drops entries at random);
* nodes that came from such a layer: torch notes the classes and the calls, an optimiser that it
  folded the layer, other exporters keep its name in that of the node;
* nodes that read running statistics.

A layer of which no node is left is not found: a batch normalization folded into a convolution
without a note, say, or a Dropout that an optimiser removed.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lipcert.core.reader.records import Model, Node
from lipcert.diagnostics import EXPORT, Diagnostic, Level
from lipcert.errors import Refusal
from lipcert.graph.ir import EvalLayer
from lipcert.importer.nodes import (
    FX_NODE,
    Call,
    call_of,
    label,
    names_in,
    needed_nodes,
    output_names,
)
from lipcert.text.numbers import first_of

SIGNATURE: Final = "pkg.torch.export.ExportedProgram.graph_signature"
NAMESPACE: Final = "namespace"
"""Key of the modules around the call that a node came from, outermost first: "name: class/…" """
FROZEN: Final = "lipcert.frozen"
"""Key of a JSON list of the parameters with requires_grad=False when the module was exported."""
_FOLDED: Final = "pkg.onnxscript.optimizer.folded_from"
_QUOTED: Final = re.compile(r"'([^']*)'")
_RULE: Final = "rewriter.rule_name"
_TORCH: Final = "pytorch"
"""Prefix of the producer's name."""
_LINE: Final = re.compile(r"^(\w+): (PARAMETER|BUFFER|CONSTANT_TENSOR)\b.*?target='([^']*)'", re.M)
_MUTATION: Final = re.compile(r"^\w+: BUFFER_MUTATION target='([^']*)'", re.M)
_INPUT: Final = re.compile(r"^(\w+): (?:[A-Z_]*INPUT|PARAMETER|BUFFER|CONSTANT_TENSOR)\b", re.M)
_OUTPUT: Final = re.compile(r"^(\w+): USER_OUTPUT\b", re.M)
_STATISTIC: Final = re.compile(r"(^|[._/])(running|moving)_(mean|var|variance)(_+\d+)?($|[./:])")
_VARIABLE: Final = re.compile(r".*/(ReadVariableOp(_\d+)?(/resource)?|\d+):0$")
"""Names that tf2onnx gives to parameters, numbers to tables; others are those of literals and
results."""
_MOVED: Final = r".*/(ExpandDims|Neg|Reshape|Squeeze|transpose)(_\d+)?:0"
"""Its names for the entries of one parameter, moved, or all of them negated."""
_PLAIN: Final = re.compile(rf".*(/[xy]|Const(_\d+)?):0$|{_MOVED}$")
_ANONYMOUS: Final = re.compile(
    rf"^(.*onnx::.*|(val_|_v_)?\d+|(const_fold_opt|[BRW]\d*)__\d+|{_MOVED})$"
)
_CALLED: Final = re.compile(
    r"^(_to_copy|abs|add|addcdiv|addcmul|alias|amax|amin|bmm|cat|clamp\w*|clone|cos|cumsum|detach|"
    r"diagonal|div|dot|einsum|elu|erf|exp|expand|expm1|flatten|gelu|hard\w*|index\w*|lerp|linalg\w*|"
    r"log|log1p|log_\w*|logsumexp|matmul|max|maximum|mean|min|minimum|mm|mul|mv|neg|outer|permute|pow|"
    r"prod|reciprocal|relu|repeat|reshape|rsqrt|rsub|select|sigmoid|sign|silu|sin|slice|softmax|"
    r"softplus|split\w*|sqrt|square|squeeze|stack|std|sub|sum|tanh|tile|to|transpose|type_as|"
    r"unflatten|unsqueeze|var|view|where)(_\d+)?$"
)
"""Names that torch.export gives to results of calls."""
_EXPORTED: Final = "node_"
"""Prefix of the names of nodes in files of torch.export."""
_RESULT: Final = re.compile(r"^.*/(\w+?)(?:_\d+)?_output_\d+$")
"""Names that the TorchScript exporter gives to results of nodes, here of folded nodes; tools that
join files put a prefix before every name."""
_FUSED: Final = re.compile(r"^(?:.*/)?(\w+)Fusion_")
"""Names that onnxruntime gives to what it folds into a layer: ConvBnFusion_W_conv.weight."""
_OF_SIZES: Final = {"Cast", "Constant", "Div", "Mul", "Pow", "Reciprocal", "Sqrt"}
"""Operators by which the scale of an attention, such as 1/√d, comes from sizes alone."""
_ITEM: Final = re.compile(r"getitem(_\d+)?")
LAYERS: Final = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Linear layers with biases."""
_STATE: Final = re.compile(rf"^[A-Za-z_]\w*(\.\w+)+$|{_VARIABLE.pattern}")
_HARMLESS: Final = re.compile(r"^Fuse(ConvPad|Successive\w*|HardSwish\w*)$")
_TRAINING: Final = "_native_batch_norm_legit_functional"
_BATCH_NORM: Final = "BatchNormalization"
_DROPOUT: Final = "Dropout"
_KINDS: Final = {
    _BATCH_NORM: re.compile(r"batch_?norm", re.IGNORECASE),
    _DROPOUT: re.compile(r"drop_?out|drop_?path|stochastic_?depth", re.IGNORECASE),
}
_MODULE: Final = re.compile(r"(?:^|/)([^/:]+): ([^/:]+)")
_CALLS: Final = "aten."
_MOST_NAMES: Final = 8


@dataclass(frozen=True, slots=True)
class Provenance:
    """The names of parameters and buffers by placeholder; signed: the exporter listed them."""

    signed: bool
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    inputs: frozenset[str]
    """All placeholders."""
    outputs: Mapping[str, str]
    """Output of the file → the call whose result it is; empty if that is not listed."""
    stored: frozenset[str]
    """Names of all initializers."""
    folded: Mapping[str, frozenset[str]]
    """Tensor that an optimiser computed → all names that went into it, if it noted them."""
    is_torch: bool
    """Whether an exporter of torch wrote the file, or a tool that kept its names of results."""
    is_tensorflow: bool
    """Whether the file has parameters by the names of tf2onnx."""
    frozen: frozenset[str] = frozenset()
    """Parameters that the file, or the user, says are not trained; they are buffers here."""

    @property
    def targets(self) -> frozenset[str]:
        """Names of the trained parameters."""
        return frozenset(self.parameters.values())

    @property
    def listed(self) -> frozenset[str]:
        """Names of the trained parameters and buffers."""
        return self.targets.union(self.buffers.values())

    def sources(self, name: str) -> frozenset[str]:
        """Return the trained parameters that an optimiser computed a tensor from, as noted."""
        names = self.folded.get(name, frozenset[str]())
        return self.targets.intersection(self.parameters.get(item, item) for item in names)

    def why_fixed(self, name: str) -> str:
        """Return why a tensor is taken to be fixed."""
        if name in self.folded:
            return "computed by the exporter, from no trained parameter"
        return "a buffer" if name in self.buffers.values() else "a constant of the code"

    def read_by(self, call: Call) -> frozenset[str]:
        """Return the parameters and buffers that a call reads itself."""
        placeholders = {**self.parameters, **self.buffers}
        return frozenset(placeholders[name] for name in call.tensors if name in placeholders)

    def is_statistic(self, name: str) -> bool:
        """Whether it is a buffer, such as a running mean or variance."""
        if self.signed or name in self.frozen:
            return name in self.frozen or name in self.buffers.values()
        return _STATISTIC.search(name) is not None

    def is_known(self, name: str) -> bool:
        """Whether the exporter says, or its name shows, that it is a parameter of the network."""
        return name in self.targets if self.signed else _STATE.match(name) is not None

    def is_literal(self, name: str, size: int) -> bool:
        """Whether it is a parameter only if it is used as a weight."""
        if self.signed:
            return name not in self.targets
        return size == 1 and _RESULT.match(name) is not None

    def is_of_sizes(self, name: str) -> bool:
        """Whether it may be computed from sizes and literals, as far as its name shows."""
        result = _RESULT.match(name)
        return not self.is_torch or (result is not None and result[1] in _OF_SIZES)

    def is_made_up(self, name: str, node: str) -> bool:
        """Whether an exporter made up the name, for a copy or for new numbers.

        node: the name of a node that reads it, which identifies the exporter. A tool that saved the
        file may have computed the result of any node from parameters; literals are Constant.
        """
        is_exported = node.startswith(_EXPORTED)
        result = _RESULT.match(name) or _FUSED.match(name)
        if is_anonymous(name) and (self.is_torch or "onnx::" in name):
            return is_exported or name in self.stored
        if (is_exported and _CALLED.match(name)) or (result and result[1] != "Constant"):
            return True
        return self.is_tensorflow and not (_VARIABLE.match(name) or _PLAIN.match(name))

    def mentioned(self, node: Node) -> list[str]:
        """Return the parameters in the call from which a node was made, in order."""
        found = names_in(node.metadata.get(FX_NODE, "").partition("(args = ")[2])
        return [self.parameters[name] for name in found if name in self.parameters]

    def missing(
        self, bound: Iterable[str], nodes: Sequence[Node], outputs: Sequence[str]
    ) -> frozenset[str]:
        """Return the parameters that the network uses and that the file has no tensor for.

        nodes: those that the outputs are computed from.
        """
        lacking = self.targets - self.stored - frozenset(bound)
        return lacking & self._used(nodes, outputs) if lacking else lacking

    def _used(self, nodes: Sequence[Node], outputs: Sequence[str]) -> frozenset[str]:
        """Return the parameters that the outputs may depend on; all if the notes have gaps.

        Proof: every node is made from a noted call, and each output, and every tensor that a noted
        call reads, is an input of the exported program or the result of a call that is noted too.
        So the outputs are computed from these calls alone, and none of them reads any other
        parameter. The name of an output proves no call: an optimiser that leaves out the call, such
        as a product by a parameter that is 1, gives its name to the value before it.
        """
        results = {name for node in nodes for name in output_names(node)} - set(self.outputs)
        read = {self.outputs.get(output, "") for output in outputs}
        for node in nodes:
            call = call_of(node)
            if call is None:
                return self.targets
            results.add(call.result)
            read.update(call.tensors)
        if not read <= (results | self.inputs) - {""}:
            return self.targets
        return frozenset(self.parameters[name] for name in read & set(self.parameters))

    def is_folded(self, node: Node, missing: frozenset[str]) -> bool:
        """Whether the tensors that a node reads were mixed with others."""
        fused = any("Fuse" in rule and not _HARMLESS.match(rule) for rule in rules_of(node))
        return fused or bool(missing.intersection(self.mentioned(node)))


def read_provenance(model: Model) -> Provenance:
    """Read what the exporter noted in a model."""
    signature = model.metadata.get(SIGNATURE, "")
    frozen = _frozen(model.metadata.get(FROZEN, ""))
    parameters: dict[str, str] = {}
    buffers: dict[str, str] = {}
    for placeholder, kind, target in _LINE.findall(signature):
        is_trained = kind == "PARAMETER" and target not in frozen
        (parameters if is_trained else buffers)[placeholder] = target
    outputs = _OUTPUT.findall(signature)
    made = (*model.initializers, *(name for node in model.nodes for name in node.outputs))
    is_listed = len(outputs) == len(model.outputs)
    return Provenance(
        bool(signature.strip()),
        parameters,
        buffers,
        frozenset(_INPUT.findall(signature)),
        dict(zip(model.outputs, outputs, strict=True)) if is_listed else {},
        frozenset(model.initializers),
        {
            name: frozenset(_QUOTED.findall(notes[_FOLDED]))
            for name, notes in model.value_metadata.items()
            if _FOLDED in notes
        },
        model.producer.startswith(_TORCH) or any(map(_RESULT.match, made)),
        any(map(_VARIABLE.match, model.initializers)),
        frozen,
    )


def _frozen(text: str) -> frozenset[str]:
    """Return the names in a note; none if it has another form, so that more counts as trained."""
    try:
        names = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return frozenset()
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return frozenset(names) if is_list else frozenset()


def training_refusals(model: Model) -> tuple[Refusal, ...]:
    """Return signs of an export in training mode that the operators do not show."""
    remedy = f"export it in evaluation mode: {EXPORT}"
    refusals = [
        Refusal("LC011", "", "", f"the exported program updates the buffer {target!r}", remedy)
        for target in _MUTATION.findall(model.metadata.get(SIGNATURE, ""))
    ]
    refusals += [
        Refusal("LC011", label(node), node.op_type, f"it was exported from {_TRAINING}", remedy)
        for node in model.nodes
        if _TRAINING in node.metadata.get(FX_NODE, "")
    ]
    return tuple(refusals)


def eval_layers(model: Model, *outputs: str) -> tuple[EvalLayer, ...]:
    """Return the layers behind outputs that were exported in evaluation mode, in order."""
    found: dict[tuple[str, str], EvalLayer] = {}
    for node in needed_nodes(model, *outputs):
        layer = _layer(node)
        if layer is not None:
            first = found.setdefault((layer.kind, layer.name), layer)
            found[layer.kind, layer.name] = first if first.node else layer
    return tuple(found.values())


def eval_notes(layers: Sequence[EvalLayer]) -> tuple[Diagnostic, ...]:
    """Return LC026, which names the layers; nothing if there are none."""
    if not layers:
        return ()
    listed = first_of([f"{layer.name!r} ({layer.kind})" for layer in layers], _MOST_NAMES)
    message = (
        "these layers were exported in eval mode and compute something else in train mode, for "
        f"which no bound holds: {listed}"
    )
    remedy = (
        "train with these layers in eval mode (batch statistics frozen, nothing dropped), or "
        "replace them: batch normalization by GroupNorm or LayerNorm, dropout by nothing"
    )
    return (Diagnostic("LC026", Level.WARNING, "", message, remedy),)


def _layer(node: Node) -> EvalLayer | None:
    """Return the layer that a node is, or came from."""
    is_layer = not node.domain and node.op_type in _KINDS
    owner = next(filter(None, map(statistic_owner, node.inputs)), "")
    module, word = _innermost_module(node)
    own_word = label(node).rpartition("/")[2] if not module else ""
    call = call_of(node)
    words = (word, call.name if call else "", own_word, *rules_of(node))
    noted = next(filter(None, map(_kind, words)), "")
    kind = node.op_type if is_layer else noted or (_BATCH_NORM if owner else "")
    name = module or owner or label(node)
    return EvalLayer(kind, name, label(node) if is_layer else "") if kind else None


def _innermost_module(node: Node) -> tuple[str, str]:
    """Return name and class of the module that a node came from; "" if none is noted."""
    modules = _MODULE.findall(node.metadata.get(NAMESPACE, ""))
    classes = [
        (name, word.rpartition(".")[2]) for name, word in modules if not word.startswith(_CALLS)
    ]
    return classes[-1] if classes else ("", "")


def _kind(word: str) -> str:
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(word)), "")


def statistic_owner(name: str) -> str:
    """Return the layer of a running statistic with this name; "" if the name is not one."""
    found = _STATISTIC.search(name)
    return "" if found is None else name[: found.start()] or name


def is_anonymous(name: str) -> bool:
    """Whether a tensor has a name that an exporter made up."""
    return _ANONYMOUS.match(name) is not None


def is_folded(node: Node) -> bool:
    """Whether a node has the output of a batch normalisation that it is not.

    torch.export names the first result of a call that has several after no operator.
    """
    names = {found[1] for found in map(_RESULT.match, node.outputs) if found is not None}
    is_item = node.op_type in LAYERS and any(map(_ITEM.fullmatch, node.outputs))
    return is_item or (node.op_type != _BATCH_NORM and _BATCH_NORM in names)


def is_literal(name: str, size: int) -> bool:
    """Whether a Constant node is a literal: named as the result of a node, or one number that has
    no name of a parameter."""
    return (size == 1 and not _STATE.match(name)) or _RESULT.match(name) is not None


def rules_of(node: Node) -> list[str]:
    """Return the names of the rewrites that an optimiser applied to a node."""
    return [
        rule.strip()
        for key, value in node.metadata.items()
        if key.endswith(_RULE)
        for rule in value.split(",")
    ]
