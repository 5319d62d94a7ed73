"""Findings: what a reader must know besides the numbers of an analysis.

What enters: the graph, the settings and what propagation proved. What leaves: diagnostics; every
absent bound has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lipcert.analysis.loss import assumed_loss, doubt_of_loss
from lipcert.diagnostics import Diagnostic, Level
from lipcert.ir import Graph
from lipcert.propagation.propagate import NetworkBounds
from lipcert.settings import Settings
from lipcert.upper import Upper

_NORMALIZATION: Final = frozenset({"layer_norm", "group_norm", "rms_norm"})
_STEEP: Final = 30.0


_FREE_WEIGHTS: Final = Diagnostic(
    "LC107",
    Level.INFO,
    "",
    "trained weights are free under this mechanism: norms that depend on them have no bound, and "
    "gradients are bounded by the clips alone",
    "declare constraints, if training enforces any, for bounds of activations too",
)


def findings(graph: Graph, bounds: NetworkBounds, settings: Settings) -> Iterator[Diagnostic]:
    """What a reader must know besides the numbers."""
    yield from unstated(graph, settings)
    yield from _softmax_end(graph)
    if settings.weights_are_free and settings.scope == "constraint-set":
        yield _FREE_WEIGHTS
        yield from _absent_gradients(graph, bounds)
    else:
        yield from _absent_bounds(graph, bounds)
        yield from _absent_gradients(graph, bounds)
    yield from _steep_normalization(graph, bounds)


def unstated(graph: Graph, settings: Settings) -> Iterator[Diagnostic]:
    """What was assumed because nobody stated it: the input domain, the loss."""
    if settings.input_is_assumed:
        yield Diagnostic(
            "LC104",
            Level.WARNING,
            "",
            "no input domain was given: every input entry is assumed to lie in [0, 1]",
            "state what the pipeline enforces with --input-norm and/or --input-box",
        )
    if settings.loss == "auto":
        kind, (doubt, fitting) = assumed_loss(graph), doubt_of_loss(graph)
        message = f"no loss was given: {kind} is assumed"
        remedy = f"confirm it with --loss {kind}, or state the one that training uses"
        if doubt:
            message += f", although {doubt}"
            remedy = f"state the training loss with --loss; {fitting} would fit"
        yield Diagnostic("LC108", Level.WARNING, "", message, remedy)


def _softmax_end(graph: Graph) -> Iterator[Diagnostic]:
    for node in graph.nodes:
        if node.output == graph.output_name and node.op.family == "softmax":
            yield Diagnostic(
                "LC103",
                Level.WARNING,
                node.name,
                "the network ends in Softmax, and the loss is applied to its output",
                "export the network without the final Softmax if the loss takes logits",
            )


def _absent_bounds(graph: Graph, bounds: NetworkBounds) -> Iterator[Diagnostic]:
    """One finding per node where a bound is lost first."""
    for node in graph.nodes:
        lost = bounds.facts[node.output].norm
        if not lost.is_finite and all(bounds.facts[i].norm.is_finite for i in node.inputs):
            yield Diagnostic("LC101", Level.WARNING, node.name, lost.reason, lost.remedy)
    cotangent = bounds.cotangents[graph.output_name].norm
    if not cotangent.is_finite:
        yield Diagnostic("LC101", Level.WARNING, "", cotangent.reason, cotangent.remedy)


def _absent_gradients(graph: Graph, bounds: NetworkBounds) -> Iterator[Diagnostic]:
    """One finding per trained parameter without a bound."""
    for name, parameter in graph.parameters.items():
        bound = bounds.grad_norms[name]
        if parameter.trainable and not bound.is_finite:
            message = f"no gradient bound: {bound.reason}"
            yield Diagnostic("LC102", Level.WARNING, name, message, bound.remedy)


def _steep_normalization(graph: Graph, bounds: NetworkBounds) -> Iterator[Diagnostic]:
    """Normalization layers that stretch by 1/√ε: usually what a loose bound comes from."""
    for node in graph.nodes:
        if node.op.family not in _NORMALIZATION:
            continue
        before = bounds.cotangents[node.output].norm.value
        after = bounds.cotangents[node.inputs[0]].norm.value
        if after.is_finite and after > Upper(_STEEP) * before:
            yield Diagnostic(
                "LC105",
                Level.WARNING,
                node.name,
                f"{node.op.kind} may stretch by {after.value / before.value:.3g}: where an "
                "example's variance vanishes, its slope is scale/sqrt(epsilon)",
                "train with a larger epsilon (1e-1, say), or with a floor on the deviation",
            )
