"""Provenance: what the exporter noted about parameters, buffers and the mode of export.

What enters: the metadata of the graph and its nodes. What leaves: for every tensor of the file,
whether it is a trained parameter, and under which name. torch.export writes a graph signature
(placeholder, kind, target) and, per node, the call it came from; without a signature the names of
initializers are taken for those of parameters.

Invariant: a tensor is only ever called a parameter of the network if it holds that parameter's
own numbers; tensors into which an optimiser folded others are reported as folded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.errors import Refusal
from lipcert.importer.constant import Origin
from lipcert.importer.raw import Array, RawGraph, RawNode

__all__ = [
    "Provenance",
    "is_anonymous",
    "is_recomputed",
    "read_provenance",
    "training_refusals",
]

_SIGNATURE: Final = "pkg.torch.export.ExportedProgram.graph_signature"
_FX_NODE: Final = "pkg.torch.onnx.fx_node"
_RULE: Final = "rewriter.rule_name"
_LINE: Final = re.compile(r"^(\w+): (PARAMETER|BUFFER|CONSTANT_TENSOR)\b.*?target='([^']*)'", re.M)
_MUTATION: Final = re.compile(r"^\w+: BUFFER_MUTATION target='([^']*)'", re.M)
_CALL: Final = re.compile(r"target=torch\.ops\.aten\.(\w+)")
_PLACEHOLDER: Final = re.compile(r"%(\w+)")
_STATISTIC: Final = re.compile(r"(^|[._/])(running_mean|running_var|moving_mean|moving_variance)")
_ANONYMOUS: Final = re.compile(r"^(onnx::.*|\d+|val_\d+)$")
_RECOMPUTED: Final = re.compile(r"^onnx::(Conv|ConvTranspose|Gemm)_\d+$")
_HARMLESS: Final = re.compile(r"^Fuse(ConvPad|Successive\w*|HardSwish\w*)$")
_TRAINING_CALLS: Final = ("_native_batch_norm_legit_functional",)

# aten call → {ONNX op: input positions of its parameters, in the order of the call's arguments}
_SLOTS: Final[Mapping[str, Mapping[str, tuple[int, ...]]]] = {
    "linear": {"MatMul": (1,), "Gemm": (1, 2)},
    "conv1d": {"Conv": (1, 2)},
    "conv2d": {"Conv": (1, 2)},
    "conv3d": {"Conv": (1, 2)},
    "layer_norm": {"LayerNormalization": (1, 2)},
}


@final
@dataclass(frozen=True, slots=True)
class Provenance:
    """Names of parameters and buffers by placeholder; `signed` if the exporter listed them."""

    signed: bool
    parameters: Mapping[str, str]
    buffers: frozenset[str]
    stored: frozenset[str]
    """names of all initializers"""

    @property
    def targets(self) -> frozenset[str]:
        """Names of the trained parameters."""
        return frozenset(self.parameters.values())

    def origin(self, name: str, array: Array) -> Origin:
        """What an initializer is; no training leaves −∞ in a tensor."""
        if bool(np.any(np.isneginf(array))):
            return Origin(name, array.shape, statistic=True)
        if self.signed:
            literal = name not in self.targets
            return Origin(name, array.shape, literal=literal, statistic=name in self.buffers)
        return Origin(name, array.shape, statistic=_STATISTIC.search(name) is not None)

    def bindings(self, node: RawNode) -> dict[int, str]:
        """Input position → parameter, where the exporter renamed, shared or transposed a tensor.

        Only for calls whose ONNX node takes the parameters unchanged (up to a transposition).
        """
        if _rules(node):
            return {}
        call = _CALL.search(node.metadata.get(_FX_NODE, ""))
        names = self.mentioned(node)
        if call is None or not names:
            return {}
        if call[1] == "linear" and node.op_type == "Add" and len(names) == 2:
            return {0: names[1], 1: names[1]}
        positions = _SLOTS.get(call[1], {}).get(node.op_type, ())
        return dict(zip(positions, names, strict=False))

    def mentioned(self, node: RawNode) -> list[str]:
        """Parameters that appear in the call from which a node was made, in order."""
        call = node.metadata.get(_FX_NODE, "").partition("(args = ")[2]
        found = _PLACEHOLDER.findall(call)
        return [self.parameters[name] for name in found if name in self.parameters]

    def missing(self, bound: Iterable[str]) -> frozenset[str]:
        """Parameters of the network of which the file holds no tensor."""
        return self.targets - self.stored - frozenset(bound)

    def is_folded(self, node: RawNode, missing: frozenset[str]) -> bool:
        """Whether the tensors that a node reads were mixed with others."""
        fused = any("Fuse" in rule and not _HARMLESS.match(rule) for rule in _rules(node))
        return bool(missing.intersection(self.mentioned(node))) or (self.signed and fused)


def read_provenance(graph: RawGraph) -> Provenance:
    """Read the exporter's notes."""
    signature = graph.metadata.get(_SIGNATURE, "")
    parameters: dict[str, str] = {}
    buffers: set[str] = set()
    for placeholder, kind, target in _LINE.findall(signature):
        if kind == "PARAMETER":
            parameters[placeholder] = target
        else:
            buffers.add(target)
    return Provenance(
        bool(signature.strip()), parameters, frozenset(buffers), frozenset(graph.tensors)
    )


def training_refusals(graph: RawGraph) -> tuple[Refusal, ...]:
    """Signs that a network was exported in training mode although its ops do not show it."""
    remedy = "call model.eval() before torch.onnx.export"
    refusals = [
        Refusal("LC011", "", "", f"the exported program updates the buffer {target!r}", remedy)
        for target in _MUTATION.findall(graph.metadata.get(_SIGNATURE, ""))
    ]
    refusals += [
        Refusal("LC011", node.name, node.op_type, f"it was exported from {call}", remedy)
        for node in graph.nodes
        for call in _TRAINING_CALLS
        if call in node.metadata.get(_FX_NODE, "")
    ]
    return tuple(refusals)


def is_anonymous(name: str) -> bool:
    """Whether a tensor has a name that an exporter made up."""
    return _ANONYMOUS.match(name) is not None


def is_recomputed(name: str) -> bool:
    """Whether the TorchScript exporter made up the name because it computed new numbers.

    Weights of convolutions and of Gemm keep their own names unless something was folded into
    them: batch normalization, above all. (A MatMul gets a transposed copy for no such reason.)
    """
    return _RECOMPUTED.match(name) is not None


def _rules(node: RawNode) -> list[str]:
    """Names of the rewrites that an optimiser applied to a node."""
    return [
        rule.strip()
        for key, value in node.metadata.items()
        if key.endswith(_RULE)
        for rule in value.split(",")
    ]
