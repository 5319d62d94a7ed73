"""Backpropagation for bounds: facts flow forward, cotangents flow backward.

What enters: a graph, facts about its input, a scope, and the cotangent of the loss at the output.
What leaves: facts of every value, cotangent facts of every value, and the per-example gradient
bound of every trained parameter. Knows graphs; names no op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, final

from lipcert.facts import Bound, CotangentFacts, ValueFacts, no_bound, sum_of
from lipcert.fusion import Around, Fusions
from lipcert.ir import Graph, Node
from lipcert.propagation.centred import centred_facts
from lipcert.propagation.chains import Chains
from lipcert.propagation.padded import PaddedConvs
from lipcert.scope import Scope
from lipcert.threads import worker_pool
from lipcert.upper import ONE, ZERO

Observer = Callable[[Node], None]
_NOTHING: Final[Mapping[str, ValueFacts]] = MappingProxyType({})
_NO_CHAINS: Final = Chains({})
_NO_FUSIONS: Final = Fusions({}, {}, {})


@final
@dataclass(frozen=True, slots=True, eq=False)
class NetworkBounds:
    """Everything that propagation proved, by value name and by parameter name.

    lipschitz: bound of the Lipschitz constant of the output with respect to the input.
    """

    facts: Mapping[str, ValueFacts]
    cotangents: Mapping[str, CotangentFacts]
    grad_norms: Mapping[str, Bound]
    lipschitz: Bound


def _ignore(node: Node) -> None:
    """Observe nothing."""
    del node


def propagate(
    graph: Graph,
    input_facts: ValueFacts,
    scope: Scope,
    loss_cotangent: Callable[[ValueFacts], CotangentFacts],
    observe: Observer = _ignore,
) -> NetworkBounds:
    """Norms, facts forward, the loss at the output, cotangents backward, gradient bounds.

    observe: called once per node in each of the three passes.
    """
    fusions = _certified(graph, scope, observe)
    facts = forward(graph, input_facts, scope, observe, fusions=fusions)
    centred = centred_facts(graph, facts, scope, Chains.of(graph, facts, scope))
    if centred:
        known = facts | {name: facts[name].meet(found) for name, found in centred.items()}
        facts = forward(graph, input_facts, scope, known=known, fusions=fusions)
    at_output = loss_cotangent(facts[graph.output_name])
    chains = Chains.of(graph, facts, scope)
    cotangents = backward(graph, facts, at_output, scope, observe, chains=chains, fusions=fusions)
    return NetworkBounds(
        facts=facts,
        cotangents=cotangents,
        grad_norms=grad_norms(graph, facts, cotangents, scope),
        lipschitz=input_lipschitz(graph, facts, scope, chains, fusions),
    )


def _certified(graph: Graph, scope: Scope, observe: Observer) -> Fusions:
    """Every operator norm, which the scope remembers, and those of linear runs.

    Most of the work is in linear algebra that lets other threads run.
    """
    with worker_pool() as pool:

        def spread(around: Callable[[Node], Around], nodes: Sequence[Node]) -> Iterator[Around]:
            found = pool.map(lambda node: (node.op.operator_norm(scope), around(node)), nodes)
            for node, (_, runs) in zip(nodes, found, strict=True):
                observe(node)
                yield runs

        return Fusions.of(graph, scope, spread)


def forward(
    graph: Graph,
    input_facts: ValueFacts,
    scope: Scope,
    observe: Observer = _ignore,
    *,
    known: Mapping[str, ValueFacts] = _NOTHING,
    fusions: Fusions = _NO_FUSIONS,
) -> dict[str, ValueFacts]:
    """Facts of every value of the graph, for all inputs that `input_facts` admits.

    known: facts that hold besides those that the ops derive.
    """
    facts = {graph.input_name: input_facts}
    for node in graph.nodes:
        found = node.op.output_facts(_inputs(node, facts), scope)
        found = fusions.reached(node, found, facts, scope)
        facts[node.output] = found.meet(known[node.output]) if node.output in known else found
        observe(node)
    return facts


def backward(
    graph: Graph,
    facts: Mapping[str, ValueFacts],
    output_cotangent: CotangentFacts,
    scope: Scope,
    observe: Observer = _ignore,
    *,
    chains: Chains = _NO_CHAINS,
    fusions: Fusions = _NO_FUSIONS,
) -> dict[str, CotangentFacts]:
    """Cotangent facts of every value: bounds of ‖∂loss/∂value‖ of one example.

    Proof: the chain rule. A value's cotangent is the sum over its uses of Jᵀ times the cotangent
    of the use's output; a value that is used nowhere has cotangent 0. Clarke Jacobians obey the
    same bound, because every op bounds all of its generalised Jacobians. What a value receives
    from a chain of uses, or from a run of linear ones, is also bounded by these as a whole.
    """
    cotangents = {graph.output_name: output_cotangent}
    for node in reversed(graph.nodes):
        inputs = _inputs(node, facts)
        received = cotangents.get(node.output, _unused())
        at_output = fusions.whole(node.output, received, cotangents)
        cotangents[node.output] = at_output
        for index, name in enumerate(node.inputs):
            share = node.op.input_cotangent(index, at_output, inputs, scope)
            share = chains.refined(node, share, cotangents)
            share = fusions.refined(node, share, cotangents)
            cotangents[name] = cotangents[name].plus(share) if name in cotangents else share
        observe(node)
    received = cotangents.get(graph.input_name, _unused())
    cotangents[graph.input_name] = fusions.whole(graph.input_name, received, cotangents)
    return cotangents


def grad_norms(
    graph: Graph,
    facts: Mapping[str, ValueFacts],
    cotangents: Mapping[str, CotangentFacts],
    scope: Scope,
) -> dict[str, Bound]:
    """Per-example gradient bound G_p = Σ over uses of l · L_θ · gain, for every parameter.

    Proof: ∂loss/∂θ is the sum over the uses of (view)ᵀ (∂out/∂operand)ᵀ cotangent; each factor is
    bounded by its norm. Several uses of one parameter add.
    """
    found = {name: Bound(ZERO, "parameter.unused") for name in graph.parameters}
    padded = PaddedConvs.of(graph)
    for node in graph.nodes:
        cotangent = cotangents[node.output]
        shares = node.op.param_grad_norms(_inputs(node, facts), cotangent, scope)
        shares = padded.refined(node, shares, cotangent, facts)
        for slot, operand in node.op.operands().items():
            if operand.parameter is not None:
                use = shares[slot].scaled(operand.gain)
                found[operand.parameter] = _add(found[operand.parameter], use)
    for name, parameter in graph.parameters.items():
        if parameter.folded:
            found[name] = no_bound(
                "parameter.folded",
                f"tensor {name!r} is not known to be a trained parameter: the exporter may have "
                "folded others into it",
                "export with torch.onnx.export(..., dynamo=True, optimize=False), or state that "
                "the file's own tensors are trained (--as-exported)",
            )
    return found


def input_lipschitz(
    graph: Graph,
    facts: Mapping[str, ValueFacts],
    scope: Scope,
    chains: Chains = _NO_CHAINS,
    fusions: Fusions = _NO_FUSIONS,
) -> Bound:
    """Lipschitz constant of output with respect to input: a unit cotangent, pulled back.

    Clips of the backward pass are not part of the function, and left out.
    """
    function = replace(
        graph, nodes=tuple(replace(node, op=node.op.unclipped()) for node in graph.nodes)
    )
    unit = CotangentFacts(Bound(ONE, "network.unit_cotangent"))
    pulled = backward(function, facts, unit, scope, chains=chains.first_links(), fusions=fusions)
    return pulled[graph.input_name].norm


def _inputs(node: Node, facts: Mapping[str, ValueFacts]) -> list[ValueFacts]:
    return [facts[name] for name in node.inputs]


def _unused() -> CotangentFacts:
    return CotangentFacts(Bound(ZERO, "cotangent.unused"))


def _add(first: Bound, second: Bound) -> Bound:
    if first.is_finite and first.value == ZERO:
        return second
    return sum_of("parameter.shared", first, second)
