"""Evaluation mode: layers that a file computes in another way than a network in training mode.

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

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from lipcert.core.reader.records import Model, Node
from lipcert.diagnostics import Diagnostic, Level
from lipcert.graph.ir import EvalLayer
from lipcert.importer.metadata import NAMESPACE, statistic_owner
from lipcert.importer.nodes import call_of, label, needed_nodes
from lipcert.text.numbers import first_of

_BATCH_NORM: Final = "BatchNormalization"
_DROPOUT: Final = "Dropout"
_KINDS: Final = {
    _BATCH_NORM: re.compile(r"batch_?norm", re.IGNORECASE),
    _DROPOUT: re.compile(r"drop_?out|drop_?path|stochastic_?depth", re.IGNORECASE),
}
_MODULE: Final = re.compile(r"(?:^|/)([^/:]+): ([^/:]+)")
_CALLS: Final = "aten."
_MOST_NAMES: Final = 8


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
    kind = node.op_type if is_layer else noted
    if not kind and owner:
        kind = _BATCH_NORM
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
