"""analyze: from an imported model and the settings of a run to certified sensitivities.

What enters: an `ImportedModel` and `Settings`. What leaves: an `Analysis`. The data flow, top to
bottom: domain and scope → facts forward → loss → cotangents backward → gradient bounds → groups →
noise → records. Every number in the result is a certified upper bound, or None with a diagnostic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lipcert.analysis import summary
from lipcert.analysis.domain import input_facts
from lipcert.analysis.findings import findings
from lipcert.analysis.groups import group_parameters
from lipcert.analysis.loss import planned_loss
from lipcert.analysis.records import Analysis
from lipcert.analysis.release import Release
from lipcert.analysis.scopes import scope_of
from lipcert.facts import Bound, CotangentFacts, ValueFacts
from lipcert.importer.model import ImportedModel
from lipcert.ir import Graph, Node
from lipcert.losses.base import Loss
from lipcert.norms.operator_norm import operator_norm
from lipcert.propagation.propagate import Observer, propagate
from lipcert.scope import NormRule
from lipcert.settings import Settings
from lipcert.upper import Upper

__all__ = ["Progress", "analyze"]

Progress = Callable[[str, int, int], None]
"""Called with what is being bounded, how many steps are done, and how many there are."""


def analyze(
    model: ImportedModel,
    settings: Settings,
    observe: Progress | None = None,
    certify: NormRule = operator_norm,
) -> Analysis:
    """Certified bounds, sensitivities and noise of a planned private training run.

    certify: what bounds the norms of weights; `norm_cache.NormCache` remembers the slow ones.
    Raises UsageError where the settings do not fit the model (unknown parameter names, a loss that
    the output shape does not admit, a missing label norm).
    """
    settings.check_patterns(model.graph.parameters)
    graph = _with_trained(model.graph, settings)
    loss = planned_loss(settings, graph.output_shape)
    scope = scope_of(graph, settings, certify)
    at_input = input_facts(graph.input_shape, settings)
    bounds = propagate(
        graph,
        at_input,
        scope,
        lambda logits: _clipped(loss, logits, settings),
        _counted(observe, 2 * len(graph.nodes)),
    )
    groups = group_parameters(graph, bounds.grad_norms, per_layer=settings.group == "layer")
    released = Release.of(groups, settings)
    return Analysis(
        model=summary.model_report(model, graph),
        assumptions=summary.assumptions(model, graph, settings, loss, at_input),
        nodes=tuple(summary.node_report(node, bounds, scope) for node in graph.nodes),
        parameters=summary.parameter_reports(graph, groups, bounds, released, settings),
        groups=summary.group_reports(groups, released),
        allocations=summary.allocation_reports(released),
        network=summary.network_report(graph, bounds, groups, released),
        diagnostics=(*model.diagnostics, *findings(graph, bounds, settings)),
    )


def _with_trained(graph: Graph, settings: Settings) -> Graph:
    trained = {
        name: replace(parameter, trainable=parameter.trainable and settings.is_trained(name))
        for name, parameter in graph.parameters.items()
    }
    return replace(graph, parameters=trained)


def _clipped(loss: Loss, logits: ValueFacts, settings: Settings) -> CotangentFacts:
    """The loss cotangent, after clipping the loss gradient where the run does so.

    Proof: a clipped member g of the hull is t·g with t in [0, 1], and the hull is convex and
    holds 0 (take j = y and average over y), so the hull still holds; the norm is capped.
    """
    cotangent = loss.cotangent(logits)
    if settings.loss_clip is None or cotangent.norm.value <= Upper(settings.loss_clip):
        return cotangent
    return CotangentFacts(Bound(Upper(settings.loss_clip), "loss.clip"), cotangent.hull)


def _counted(observe: Progress | None, steps: int) -> Observer:
    done = 0

    def step(node: Node) -> None:
        nonlocal done
        done += 1
        if observe is not None:
            observe(node.name, done, steps)

    return step
