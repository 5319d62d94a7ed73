"""Provenance: what the exporter noted about parameters, buffers and the mode of export.

The metadata of the graph and its nodes say which tensors of the file are trained parameters, and
under which names. torch.export writes a graph signature (placeholder, kind, target) and, per node,
the call it came from; without a signature the names of initializers are taken for those of
parameters.

Invariant: a tensor is only ever called a parameter of the network if it holds that parameter's
own numbers; tensors into which an optimiser folded others are reported as folded.

Evaluation mode: layers that a file computes in another way than a network in training mode.

Among the nodes that the output is computed from, these show that a layer was exported in evaluation
mode:

* nodes BatchNormalization (frozen statistics, where training takes those of the batch) and
  Dropout (the identity, where training drops entries at random);
* nodes that came from such a layer: torch notes the classes and the calls, other exporters leave
  its name in that of the node;
* nodes that read running statistics.

A layer of which no node is left, a batch normalization folded into a convolution without a note,
say, or a Dropout that an optimiser removed, leaves no trace, and is not found.
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
"""key of the modules around the call that a node came from, outermost first: "name: class/…" """
FROZEN: Final = "lipcert.frozen"
"""key of a JSON list of the parameters that needed no gradient when the module was exported"""
_FOLDED: Final = "pkg.onnxscript.optimizer.folded_from"
_QUOTED: Final = re.compile(r"'([^']*)'")
_RULE: Final = "rewriter.rule_name"
_TORCH: Final = "pytorch"
"""beginning of the name of the producer"""
_LINE: Final = re.compile(r"^(\w+): (PARAMETER|BUFFER|CONSTANT_TENSOR)\b.*?target='([^']*)'", re.M)
_MUTATION: Final = re.compile(r"^\w+: BUFFER_MUTATION target='([^']*)'", re.M)
_INPUT: Final = re.compile(r"^(\w+): (?:[A-Z_]*INPUT|PARAMETER|BUFFER|CONSTANT_TENSOR)\b", re.M)
_OUTPUT: Final = re.compile(r"^(\w+): USER_OUTPUT\b", re.M)
_STATISTIC: Final = re.compile(r"(^|[._/])(running|moving)_(mean|var|variance)(_+\d+)?($|[./:])")
_ANONYMOUS: Final = re.compile(r"^(onnx::.*|\d+|val_\d+)$")
_CALLED: Final = re.compile(
    r"^(abs|add|addcdiv|addcmul|bmm|cat|clamp\w*|clone|cumsum|diagonal|div|einsum|exp|expand|gelu|"
    r"index\w*|linalg\w*|log|matmul|mean|mm|mul|neg|outer|permute|pow|reciprocal|relu|repeat|reshape|"
    r"rsqrt|rsub|select|sigmoid|silu|slice|softmax|softplus|split\w*|sqrt|square|squeeze|stack|std|sub|"
    r"sum|tanh|transpose|unsqueeze|var|view|where)(_\d+)?$"
)
"""names that torch.export gives to results of calls"""
_EXPORTED: Final = "node_"
"""beginning of the names of nodes in its files"""
_RESULT: Final = re.compile(r"^/.+_output_\d+$")
"""names that the TorchScript exporter gives to results of nodes, here of nodes that were folded"""
_STATE: Final = re.compile(r"^[A-Za-z_]\w*(\.\w+)+$")
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
    """Names of parameters and buffers by placeholder; `signed` if the exporter listed them."""

    signed: bool
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    inputs: frozenset[str]
    """all placeholders"""
    outputs: Mapping[str, str]
    """output of the file → the call that it is the result of; empty where that is not listed"""
    stored: frozenset[str]
    """names of all initializers"""
    folded: Mapping[str, frozenset[str]]
    """tensor that an optimiser computed → all names that went into it, where it noted them"""
    is_torch: bool
    """whether an exporter of torch wrote the file"""
    frozen: frozenset[str] = frozenset()
    """parameters that are not trained, as the file says; for all that follows they are buffers"""

    @property
    def targets(self) -> frozenset[str]:
        """Names of the trained parameters."""
        return frozenset(self.parameters.values())

    @property
    def listed(self) -> frozenset[str]:
        """Names of the trained parameters and buffers."""
        return self.targets.union(self.buffers.values())

    def sources(self, name: str) -> frozenset[str]:
        """The trained parameters that an optimiser computed a tensor from, as far as it noted."""
        names = self.folded.get(name, frozenset[str]())
        return self.targets.intersection(self.parameters.get(item, item) for item in names)

    def told(self, name: str) -> str:
        """Why a tensor is taken for a fixed one."""
        if name in self.folded:
            return "computed by the exporter, from no trained parameter"
        return "a buffer" if name in self.buffers.values() else "a constant of the code"

    def read_by(self, call: Call) -> frozenset[str]:
        """The parameters and buffers that a call reads itself."""
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
        """Whether it is only a parameter if it stands in the slot of a weight."""
        if self.signed:
            return name not in self.targets
        return size == 1 and _RESULT.match(name) is not None

    def is_made_up(self, name: str, node: str) -> bool:
        """Whether an exporter of torch made up the name, of a copy or of new numbers.

        node: the name of one that reads it, which identifies the exporter.
        """
        if not self.is_torch:
            return name.startswith("onnx::")
        is_called = node.startswith(_EXPORTED) and _CALLED.match(name) is not None
        return is_anonymous(name) or is_called

    def mentioned(self, node: Node) -> list[str]:
        """Parameters that appear in the call from which a node was made, in order."""
        found = names_in(node.metadata.get(FX_NODE, "").partition("(args = ")[2])
        return [self.parameters[name] for name in found if name in self.parameters]

    def missing(
        self, bound: Iterable[str], nodes: Sequence[Node], outputs: Sequence[str]
    ) -> frozenset[str]:
        """Parameters that the network uses and of which the file holds no tensor.

        nodes: those that the outputs are computed from.
        """
        lacking = self.targets - self.stored - frozenset(bound)
        return lacking & self._used(nodes, outputs) if lacking else lacking

    def _used(self, nodes: Sequence[Node], outputs: Sequence[str]) -> frozenset[str]:
        """Parameters that the outputs may be computed from; all where the notes have gaps.

        Proof: every node is made from a noted call, and each output, and every tensor that a noted
        call reads, is an input of the exported program or the result of a call that is noted too.
        So these calls are all that the outputs are computed from, and none of them reads any other
        parameter. A name of an output proves no call: an optimiser that leaves out the call, such
        as a product by a parameter that is 1, gives its name to what stood before it.
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
        return bool(missing.intersection(self.mentioned(node))) or (self.signed and fused)


def read_provenance(model: Model) -> Provenance:
    """Read what the exporter noted in a model."""
    signature = model.metadata.get(SIGNATURE, "")
    frozen = _frozen(model.metadata.get(FROZEN, ""))
    parameters: dict[str, str] = {}
    buffers: dict[str, str] = {}
    for placeholder, kind, target in _LINE.findall(signature):
        if kind == "PARAMETER" and target not in frozen:
            parameters[placeholder] = target
        else:
            buffers[placeholder] = target
    outputs = _OUTPUT.findall(signature)
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
        model.producer.startswith(_TORCH),
        frozen,
    )


def _frozen(text: str) -> frozenset[str]:
    """The names in a note; none where it is of another form, so that more is trained."""
    try:
        names = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return frozenset()
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return frozenset(names) if is_list else frozenset()


def training_refusals(model: Model) -> tuple[Refusal, ...]:
    """Signs that a network was exported in training mode although its ops do not show it."""
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
    """The layers behind outputs that were exported in evaluation mode, in order."""
    found: dict[tuple[str, str], EvalLayer] = {}
    for node in needed_nodes(model, *outputs):
        layer = _layer(node)
        if layer is not None:
            first = found.setdefault((layer.kind, layer.name), layer)
            found[layer.kind, layer.name] = first if first.node else layer
    return tuple(found.values())


def eval_notes(layers: Sequence[EvalLayer]) -> tuple[Diagnostic, ...]:
    """LC026, which names the layers."""
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
    """The layer that a node is, or came from."""
    is_layer = not node.domain and node.op_type in _KINDS
    owner = next(filter(None, map(statistic_owner, node.inputs)), "")
    module, word = _innermost_module(node)
    own_word = label(node).rpartition("/")[2] if not module else ""
    call = call_of(node)
    noted = _kind(word) or _kind(call.name if call else "") or _kind(own_word)
    kind = node.op_type if is_layer else noted or (_BATCH_NORM if owner else "")
    name = module or owner or label(node)
    return EvalLayer(kind, name, label(node) if is_layer else "") if kind else None


def _innermost_module(node: Node) -> tuple[str, str]:
    """The name and the class of the module that a node came from; "" where none is noted."""
    modules = _MODULE.findall(node.metadata.get(NAMESPACE, ""))
    classes = [
        (name, word.rpartition(".")[2]) for name, word in modules if not word.startswith(_CALLS)
    ]
    return classes[-1] if classes else ("", "")


def _kind(word: str) -> str:
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(word)), "")


def statistic_owner(name: str) -> str:
    """The layer to which a tensor of this name is a running statistic, "" where it is none."""
    found = _STATISTIC.search(name)
    return "" if found is None else name[: found.start()] or name


def is_anonymous(name: str) -> bool:
    """Whether a tensor has a name that an exporter made up."""
    return _ANONYMOUS.match(name) is not None


def rules_of(node: Node) -> list[str]:
    """Names of the rewrites that an optimiser applied to a node."""
    return [
        rule.strip()
        for key, value in node.metadata.items()
        if key.endswith(_RULE)
        for rule in value.split(",")
    ]
