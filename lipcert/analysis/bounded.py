"""Bounded: what is proved of a network under the settings of a run, before anything is noised.

What enters: a graph and `Settings`. What leaves: the graph that the run evaluates, and all bounds
of it, as typed values. The data flow, top to bottom: domain and scope → facts forward → loss →
cotangents backward → gradient bounds → groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from lipcert.analysis.clipping import with_clips
from lipcert.analysis.domain import input_facts
from lipcert.analysis.groups import Group, group_parameters
from lipcert.analysis.loss import planned_loss
from lipcert.analysis.mechanism import clipped_grad_norms, clipped_groups, mechanism_of
from lipcert.analysis.scopes import scope_of
from lipcert.facts import Bound, CotangentFacts, ValueFacts
from lipcert.ir import Graph, Node
from lipcert.losses.base import Loss
from lipcert.norms.operator_norm import operator_norm
from lipcert.privacy.mechanisms import BackpropClipping
from lipcert.propagation.propagate import NetworkBounds, Observer, propagate
from lipcert.scope import NormRule, Scope
from lipcert.settings import Settings
from lipcert.threads import one_thread
from lipcert.upper import Upper

Progress = Callable[[str, int, int], None]
"""Called with what is being bounded, how many steps are done, and how many there are."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """A network, its domain, its weights in scope and its loss, with everything proved of it.

    graph: with the trained parameters of the settings, and the clips of the mechanism in place.
    bounds: its gradient norms are those after the mechanism; `groups` likewise. loss_clip: the
    norm to which the run clips ∂loss/∂logits, None where it does not.
    """

    graph: Graph
    loss: Loss
    scope: Scope
    at_input: ValueFacts
    bounds: NetworkBounds
    groups: tuple[Group, ...]
    loss_clip: float | None = None


@one_thread()
def bounded(
    graph: Graph,
    settings: Settings,
    observe: Progress | None = None,
    certify: NormRule = operator_norm,
) -> Bounded:
    """Certified bounds of a network under the settings.

    certify: what bounds the norms of weights; `norm_cache.NormCache` remembers the slow ones.
    Raises UsageError where the settings do not fit the model (unknown parameter names, a loss that
    the output shape does not admit, a missing label norm).
    """
    settings.check_patterns(graph.parameters)
    mechanism = mechanism_of(settings)
    graph = _with_trained(graph, settings)
    if isinstance(mechanism, BackpropClipping):
        graph = with_clips(graph, mechanism)
    loss = planned_loss(settings, graph)
    scope = scope_of(graph, settings, certify)
    at_input = input_facts(graph.input_shape, settings)
    bounds = propagate(
        graph,
        at_input,
        scope,
        lambda logits: loss_cotangent(loss, logits, settings.loss_clip),
        _counted(observe, 3 * len(graph.nodes)),
    )
    bounds = replace(
        bounds, grad_norms=clipped_grad_norms(bounds.grad_norms, mechanism, drops=graph.drops)
    )
    groups = group_parameters(graph, bounds.grad_norms, per_layer=settings.group == "layer")
    groups = clipped_groups(groups, mechanism, drops=graph.drops)
    return Bounded(graph, loss, scope, at_input, bounds, tuple(groups), settings.loss_clip)


def _with_trained(graph: Graph, settings: Settings) -> Graph:
    trained = {
        name: replace(parameter, trainable=parameter.trainable and settings.is_trained(name))
        for name, parameter in graph.parameters.items()
    }
    return replace(graph, parameters=trained)


def loss_cotangent(loss: Loss, logits: ValueFacts, clip: float | None) -> CotangentFacts:
    """The loss cotangent, after clipping the loss gradient where the run does so."""
    cotangent = loss.cotangent(logits)
    if clip is None:
        return cotangent
    return cotangent.capped(Bound(Upper(clip), "loss.clip"))


def _counted(observe: Progress | None, steps: int) -> Observer:
    done = 0

    def step(node: Node) -> None:
        nonlocal done
        done += 1
        if observe is not None:
            observe(node.name, done, steps)

    return step
