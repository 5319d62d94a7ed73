"""Drift of a network: rounding errors carried through it, forward and back.

What enters: a graph with its bounds in real arithmetic, and a precision. What leaves: by how much
the norm of each computed value, cotangent and gradient may exceed its bound.

Statement. Let the bounds X of values, l of cotangents and G of gradients be those of `propagate`.
For every admissible example and all weights in scope, evaluated in the precision under the
assumptions of `rounding`: ‖â‖ ≤ X + E, ‖b̂‖ ≤ l + F, ‖ĝ‖ ≤ G + H, with E, F, H the drift.

Hypotheses. The bounds follow node by node from facts about the values that each node reads, for
all Jacobians (generalised ones included) at all points that obey these facts; no rule relates the
points at which different nodes are differentiated. So are those of `propagate`.

Proof. Values: a and â are the exact and the computed value, ‖â − a‖ ≤ E' where E' of an output is
Σ L_i·E'_i + ‖fl(f(â)) − f(â)‖ (mean value theorem on the segment between the inputs, which lies in
the widened, convex facts; L_i is the rule's constant there). So â obeys the facts of a widened by
E', and also the facts that f has on the widened facts of its inputs, widened by the local error.
Both together are the facts of computed values.
Cotangents: let b̄ be what exact arithmetic makes of the loss gradient at the computed logits with
the Jacobians at the computed values. By the hypothesis the rules bound b̄, given the facts of
computed values: l'. And b̂ = b̄ + f, where f_in = Jᵀf_out + rounding, because at fixed Jacobians
backpropagation is linear: ‖f_in‖ ≤ L·‖f_out‖ + local error for ‖b̂_out‖ ≤ l' + F'. Sums over
several readers round once more. No curvature enters: l' holds for any points within the facts.
Gradients are bilinear: those of b̄ are bounded by the rules, that of f by L_θ·‖f‖.
The drift is what these bounds exceed the given ones by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.analysis.bounded import Bounded
from lipcert.audit.drift import entrywise, linear, moves, normalized, softmax, sums
from lipcert.audit.drift.local import LocalErrors, Site, carried, local_errors
from lipcert.audit.drift.losses import loss_error
from lipcert.audit.drift.replayed import replayed_arrays
from lipcert.audit.drift.rounding import Rounding, joined
from lipcert.audit.precision import Precision
from lipcert.facts import Bound, CotangentFacts, Runs, ValueFacts, bound_of
from lipcert.fusion import Fusions
from lipcert.interval import Interval
from lipcert.ir import Graph, Node
from lipcert.losses.base import Loss
from lipcert.propagation.chains import Chains
from lipcert.propagation.propagate import NetworkBounds, backward, grad_norms
from lipcert.scope import Scope
from lipcert.upper import INFINITE, ZERO, FloatArray, Upper

_RULES = (entrywise, linear, moves, normalized, softmax, sums)
"""imported so that their rules are known"""
_RULE = "audit.drift"


@final
@dataclass(frozen=True, slots=True)
class Drift:
    """By how much computed norms may exceed the bounds, by name; inf where there is no bound.

    unbounded: the nodes at which an error first has no bound although the value has one.
    """

    values: Mapping[str, float]
    cotangents: Mapping[str, float]
    parameters: Mapping[str, float]
    unbounded: tuple[str, ...] = ()


def drift_of(
    network: Bounded, precision: Precision, weights: Mapping[str, FloatArray] | None = None
) -> Drift:
    """The drift of a network in one precision; gradients before any clip of theirs.

    weights: those that are replayed, by parameter; None for those of the file.
    """
    graph, bounds, scope, loss = network.graph, network.bounds, network.scope, network.loss
    walk = _Walk(graph, bounds, scope, Rounding.of(precision), weights)
    walk.forward()
    logits = walk.facts[graph.output_name]
    at_output, error = _at_logits(loss, logits, network.loss_clip, walk.rounding)
    chains = Chains.of(graph, walk.facts, scope)
    fusions = Fusions.of(graph, scope)
    cotangents = backward(graph, walk.facts, at_output, scope, chains=chains, fusions=fusions)
    walk.backward(cotangents, error)
    reached = walk.gradients(cotangents)
    given = grad_norms(graph, bounds.facts, bounds.cotangents, scope)
    return Drift(
        values={
            name: _excess(facts.norm.value, bounds.facts[name].norm)
            for name, facts in walk.facts.items()
        },
        cotangents={
            name: _excess(facts.norm.value + walk.errors[name], bounds.cotangents[name].norm)
            for name, facts in cotangents.items()
        },
        parameters={name: _excess(bound, given[name]) for name, bound in reached.items()},
        unbounded=tuple(walk.unbounded),
    )


@dataclass(slots=True, eq=False)
class _Shares:
    """What the readers of one value send back: errors, bounds of the shares, and how many."""

    error: Upper = ZERO
    size: Upper = ZERO
    count: int = 0

    def add(self, error: Upper, size: Upper) -> None:
        self.error, self.size = self.error + error, self.size + size
        self.count += 1

    def summed(self, rounding: Rounding) -> Upper:
        """The error of their sum."""
        if self.count <= 1:
            return self.error
        return self.error + rounding.gathered(self.count) * self.size


@final
@dataclass(slots=True, eq=False)
class _Walk:
    """One pass forward, then one back. facts: of computed values. errors: F by value."""

    graph: Graph
    bounds: NetworkBounds
    scope: Scope
    rounding: Rounding
    weights: Mapping[str, FloatArray] | None
    facts: dict[str, ValueFacts] = field(default_factory=dict)
    sites: dict[str, tuple[Site, LocalErrors]] = field(default_factory=dict)
    errors: dict[str, Upper] = field(default_factory=dict)
    unbounded: list[str] = field(default_factory=list)

    def forward(self) -> None:
        """Facts of all computed values, and the local errors of all nodes."""
        name = self.graph.input_name
        given = self.bounds.facts[name]
        rounded = self.rounding.stored(1) * given.norm.value
        distance = {name: rounded + self.rounding.floor(given.size, 1)}
        self.facts[name] = _rounded_input(given, self.rounding, distance[name])
        for node in self.graph.nodes:
            inputs = [self.facts[value] for value in node.inputs]
            output = node.op.output_facts(inputs, self.scope)
            arrays = replayed_arrays(node, self.weights)
            site = Site(inputs, output, arrays, self.scope, self.rounding)
            local = local_errors(node.op, site)
            self.sites[node.name] = site, local
            moved = local.output
            for index, value in enumerate(node.inputs):
                if distance[value] != ZERO:
                    moved = moved + site.lipschitz(node.op, index) * distance[value]
            distance[node.output] = moved
            base = self.bounds.facts[node.output]
            found = _widened(output, local.output).meet(_widened(base, moved))
            if local.reached is not None:
                found = found.meet(local.reached)
            self.facts[node.output] = found
            if base.norm.is_finite and not found.norm.is_finite:
                self._refuse(node)

    def backward(self, cotangents: Mapping[str, CotangentFacts], at_output: Upper) -> None:
        """F of every value."""
        shares: dict[str, _Shares] = {}
        size = cotangents[self.graph.output_name].norm.value + at_output
        shares.setdefault(self.graph.output_name, _Shares()).add(at_output, size)
        for node in reversed(self.graph.nodes):
            error = shares.get(node.output, _Shares()).summed(self.rounding)
            self.errors[node.output] = error
            facts = cotangents[node.output]
            site, local = self.sites[node.name]
            whole = facts.norm.value + error
            for index, value in enumerate(node.inputs):
                rounded = local.inputs[index].at(whole)
                sent = carried(node.op, index, site, facts, error) + rounded
                size = site.lipschitz(node.op, index) * whole + rounded
                shares.setdefault(value, _Shares()).add(sent, size)
                if whole.is_finite and not sent.is_finite:
                    self._refuse(node)
        name = self.graph.input_name
        self.errors[name] = shares.get(name, _Shares()).summed(self.rounding)

    def gradients(self, cotangents: Mapping[str, CotangentFacts]) -> dict[str, Upper]:
        """Bounds of computed gradients: all uses of a parameter, added up."""
        exact = grad_norms(self.graph, self.facts, cotangents, self.scope)
        errors: dict[str, Upper] = dict.fromkeys(exact, ZERO)
        for node in self.graph.nodes:
            site, local = self.sites[node.name]
            error = self.errors[node.output]
            whole = cotangents[node.output].norm.value + error
            slopes = site.param_lipschitz(node.op)
            for slot, operand in node.op.operands().items():
                if operand.parameter is not None:
                    use = slopes[slot] * error + local.operands[slot].at(whole)
                    use = use + self.rounding.stored(4) * slopes[slot] * whole
                    errors[operand.parameter] = errors[operand.parameter] + use * operand.gain
        return {name: bound.value + errors[name] for name, bound in exact.items()}

    def _refuse(self, node: Node) -> None:
        reason = f"no bound of rounding errors at node {node.name!r} ({node.op.kind})"
        if reason not in self.unbounded:
            self.unbounded.append(reason)


def _at_logits(
    loss: Loss, logits: ValueFacts, clip: float | None, rounding: Rounding
) -> tuple[CotangentFacts, Upper]:
    """Facts of the loss gradient at the computed logits, and its error."""
    facts, error = loss.cotangent(logits), loss_error(loss, logits, rounding)
    if clip is None:
        return facts, error
    radius = Upper(clip)
    relative = joined(rounding.summed(logits.size + 4), rounding.stored(8))
    clipped = relative * min(radius, facts.norm.value + error)
    return facts.capped(Bound(radius, "loss.clip")), error + clipped


def _rounded_input(facts: ValueFacts, rounding: Rounding, distance: Upper) -> ValueFacts:
    """The facts of a stored example: each entry is rounded, and keeps its sign."""
    room, tiny = rounding.stored(2).value, rounding.tiny.value
    lo, hi = facts.box.lo, facts.box.hi
    with np.errstate(invalid="ignore"):  # of infinite ends, in the branch that is not taken
        low = np.where(lo >= 0.0, np.maximum(lo - room * lo - tiny, 0.0), lo + room * lo - tiny)
        high = np.where(hi <= 0.0, np.minimum(hi - room * hi + tiny, 0.0), hi + room * hi + tiny)
    widened = _widened(facts, distance)
    return ValueFacts.of(facts.shape, widened.norm, Interval(low, high), widened.runs)


def _widened(facts: ValueFacts, distance: Upper) -> ValueFacts:
    """Facts of everything that close to what has these facts."""
    if distance == ZERO:
        return facts
    norm = bound_of(facts.norm.value + distance, _RULE)
    box = facts.box + Interval.symmetric(distance, ())
    runs = facts.runs
    if runs is not None:
        runs = Runs(runs.axis, runs.norm + distance)
    return ValueFacts.of(facts.shape, norm, box, runs)


def _excess(reached: Upper, given: Bound) -> float:
    """reached − given, rounded up; 0 where that is negative."""
    if not (reached.is_finite and given.is_finite):
        return INFINITE.value
    difference = Fraction(reached.value) - Fraction(given.value.value)
    return Upper.of_fraction(max(difference, Fraction(0))).value
