"""analyze: from an imported model and the settings of a run to certified sensitivities.

What enters: an `ImportedModel` and `Settings`. What leaves: an `Analysis`. The data flow, top to
bottom: domain and scope → facts forward → loss → cotangents backward → gradient bounds → groups →
noise → records. Every number in the result is a certified upper bound, or None with a diagnostic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lipcert.analysis import summary
from lipcert.analysis.clipping import with_clips
from lipcert.analysis.domain import input_facts
from lipcert.analysis.findings import findings
from lipcert.analysis.groups import group_parameters
from lipcert.analysis.loss import planned_loss
from lipcert.analysis.mechanism import clipped_grad_norms, clipped_groups, mechanism_of
from lipcert.analysis.planned import account_of, plan_of, planned_multiplier
from lipcert.analysis.records import Analysis
from lipcert.analysis.release import Release, noise_groups_of
from lipcert.analysis.scopes import constraints_of, scope_of
from lipcert.analysis.witness.aligned import aligned_graph
from lipcert.analysis.witness.search import NO_WITNESS, Witness, find_witness
from lipcert.facts import Bound, CotangentFacts, ValueFacts
from lipcert.importer.model import ImportedModel
from lipcert.ir import Graph, Node
from lipcert.losses.base import Loss
from lipcert.norms.operator_norm import operator_norm
from lipcert.privacy.mechanisms import BackpropClipping
from lipcert.propagation.propagate import Observer, propagate
from lipcert.scope import NormRule
from lipcert.settings import Settings
from lipcert.upper import Upper

__all__ = ["Progress", "analyze"]

Progress = Callable[[str, int, int], None]
"""Called with what is being bounded, how many steps are done, and how many there are."""
_PLAIN_MECHANISMS: Final = frozenset({"none", "clipless"})
"""Those under which gradients are what backpropagation finds at weights of the scope."""


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
    plan = plan_of(settings)
    mechanism = mechanism_of(settings)
    graph = _with_trained(model.graph, settings)
    if isinstance(mechanism, BackpropClipping):
        graph = with_clips(graph, mechanism)
    loss = planned_loss(settings, graph.output_shape)
    scope = scope_of(graph, settings, certify)
    at_input = input_facts(graph.input_shape, settings)
    bounds = propagate(
        graph,
        at_input,
        scope,
        lambda logits: _clipped(loss, logits, settings),
        _counted(observe, 3 * len(graph.nodes)),
    )
    bounds = replace(bounds, grad_norms=clipped_grad_norms(bounds.grad_norms, mechanism))
    groups = group_parameters(graph, bounds.grad_norms, per_layer=settings.group == "layer")
    groups = clipped_groups(groups, mechanism)
    noised = noise_groups_of(groups, settings)
    multiplier = planned_multiplier(plan, settings, noised)
    released = Release.of(noised, settings, multiplier)
    account = None if plan is None else account_of(plan, multiplier, settings)
    return Analysis(
        model=summary.model_report(model, graph),
        assumptions=summary.assumptions(
            model, graph, settings, loss, at_input, multiplier=multiplier
        ),
        nodes=tuple(summary.node_report(node, bounds, scope) for node in graph.nodes),
        parameters=summary.parameter_reports(graph, groups, bounds, released, settings),
        groups=summary.group_reports(groups, released),
        allocations=summary.allocation_reports(released),
        network=summary.network_report(
            graph, bounds, groups, released, _witness(graph, loss, at_input, settings)
        ),
        privacy=account,
        diagnostics=(
            *model.diagnostics,
            *findings(graph, bounds, settings),
            *(account.diagnostics if account is not None else ()),
        ),
    )


def _witness(graph: Graph, loss: Loss, at_input: ValueFacts, settings: Settings) -> Witness:
    """What admissible examples reach: at the weights of the file, or at some within constraints."""
    if settings.tier == "quick" or settings.mechanism not in _PLAIN_MECHANISMS:
        return NO_WITNESS
    tried: Graph | None = graph
    if settings.scope == "constraint-set":
        tried = aligned_graph(graph, constraints_of(graph, settings), at_input)
    if tried is None:
        return NO_WITNESS
    return find_witness(tried, loss, at_input, settings.loss_clip)


def _with_trained(graph: Graph, settings: Settings) -> Graph:
    trained = {
        name: replace(parameter, trainable=parameter.trainable and settings.is_trained(name))
        for name, parameter in graph.parameters.items()
    }
    return replace(graph, parameters=trained)


def _clipped(loss: Loss, logits: ValueFacts, settings: Settings) -> CotangentFacts:
    """The loss cotangent, after clipping the loss gradient where the run does so."""
    cotangent = loss.cotangent(logits)
    if settings.loss_clip is None:
        return cotangent
    return cotangent.capped(Bound(Upper(settings.loss_clip), "loss.clip"))


def _counted(observe: Progress | None, steps: int) -> Observer:
    done = 0

    def step(node: Node) -> None:
        nonlocal done
        done += 1
        if observe is not None:
            observe(node.name, done, steps)

    return step
