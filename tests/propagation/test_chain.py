"""Chains: bounds replayed from their witnesses, without the search that found the multipliers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lipcert.facts import Bound, CotangentFacts, PairHull
from lipcert.forms.quadratic import Multipliers
from lipcert.interval import Interval
from lipcert.ir import Graph
from lipcert.norms.operator_norm import Tier
from lipcert.ops import functions
from lipcert.ops.activation import Activation
from lipcert.ops.affine import Scale
from lipcert.ops.linear import Dense
from lipcert.propagation.centred import EnclosingBall, centred_facts
from lipcert.propagation.chain import Chain, MultiplierWitness
from lipcert.propagation.chains import Chains
from lipcert.propagation.propagate import forward
from lipcert.scope import PointScope
from lipcert.upper import ONE, Upper
from tests.networks import ball, box, chain, proved, trained

CLASSES = 4


def network(seed: int, widths: tuple[int, ...] = (6, 12, 9, CLASSES)) -> Graph:
    rng = np.random.default_rng(seed)
    ops = []
    for k, (before, after) in enumerate(itertools.pairwise(widths)):
        weight = rng.standard_normal((after, before)) / np.sqrt(before)
        bias = 0.3 * rng.standard_normal(after)
        ops += [Dense(trained(f"w{k}", weight), trained(f"b{k}", bias))]
        ops += [Activation(functions.Relu())]
    return chain((widths[0],), *ops[:-1])


def whole_chain(graph: Graph) -> Chain:
    scope = PointScope(Tier.FAST)
    facts = forward(graph, box((6,), 0.0, 1.0), scope)
    found = Chains.of(graph, facts, scope).starting_at("x")
    assert found is not None
    return found


def at_logits(kind: str) -> CotangentFacts:
    hull = PairHull(CLASSES, ONE) if kind == "hull" else None
    return CotangentFacts(Bound(Upper(2.0).sqrt(), "test.loss"), hull)


def largest_seen(network_chain: Chain, kind: str) -> float:
    """The largest ‖δ‖ for Jacobians with random masks, from below."""
    rng = np.random.default_rng(3)
    best = 0.0
    for _ in range(300):
        jacobian = np.eye(6)
        for link in network_chain.links:
            if isinstance(link, Interval):
                middle = rng.integers(0, 2, size=len(link.lo))
                jacobian = (link.lo + middle * (link.hi - link.lo))[:, None] * jacobian
            else:
                jacobian = link @ jacobian
        if kind == "ball":
            best = max(best, np.sqrt(2.0) * float(np.linalg.norm(jacobian, 2)))
        else:
            pairs = jacobian[:, None] - jacobian
            best = max(best, float(np.max(np.linalg.norm(pairs, axis=2))))
    return best


def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr("lipcert.propagation.chain.tuned", refused)


@pytest.mark.parametrize("kind", ["ball", "hull"])
def test_a_witness_proves_the_cotangent_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network(0)
    bounds = proved(graph, box((6,), 0.0, 1.0), lambda _: at_logits(kind))
    bound = bounds.cotangents["x"].norm
    assert bound.rule == "chain.cotangent"
    witness = bound.witness
    assert isinstance(witness, MultiplierWitness)
    assert witness.nodes == tuple(node.name for node in graph.nodes)
    assert any(each is not None for each in witness.multipliers)
    known = whole_chain(graph)
    no_search(monkeypatch)
    again = known.cotangent_by(witness, 0, at_logits(kind))
    assert again == bound
    assert again.value.value >= largest_seen(known, kind)


def test_every_place_in_a_chain_has_its_own_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    known = whole_chain(network(1))
    bounds = {start: known.cotangent(start, at_logits("hull")) for start in known.starts()}
    assert len(bounds) > 1
    no_search(monkeypatch)
    for start, bound in bounds.items():
        assert isinstance(bound.witness, MultiplierWitness)
        assert bound.witness.nodes == tuple(node.name for node in known.nodes[start:])
        assert known.cotangent_by(bound.witness, start, at_logits("hull")) == bound


@pytest.mark.parametrize("kind", ["ball", "hull"])
def test_no_witness_proves_a_value_below_the_truth(kind: str) -> None:
    known = whole_chain(network(0))
    own = known.cotangent(0, at_logits(kind))
    assert isinstance(own.witness, MultiplierWitness)
    others = [
        whole_chain(network(5)).cotangent(0, at_logits(kind)).witness,
        whole_chain(network(5, (6, 7, 12, CLASSES))).cotangent(0, at_logits(kind)).witness,
        *(scaled(own.witness, factor) for factor in (0.0, -1.0, 1e-200, 0.5, np.nan, np.inf)),
    ]
    least = largest_seen(known, kind)
    for other in others:
        assert isinstance(other, MultiplierWitness)
        again = known.cotangent_by(other, 0, at_logits(kind))
        assert again.value.value >= least
    unlike = known.cotangent_by(others[0], 0, at_logits(kind))
    assert unlike.value.value > own.value.value * (1 + 1e-3)


def scaled(witness: MultiplierWitness, factor: float) -> MultiplierWitness:
    with np.errstate(invalid="ignore"):
        changed = tuple(
            None if each is None else Multipliers(each.weights * factor, each.ratio * factor)
            for each in witness.multipliers
        )
    return MultiplierWitness(witness.nodes, changed)


def test_a_witness_for_fewer_or_more_nodes_is_refused() -> None:
    known = whole_chain(network(0))
    witness = known.tuned(0, len(known.links), hull=False)
    shorter = known.tuned(0, len(known.links) - 1, hull=False)
    with pytest.raises(ValueError, match="other nodes"):
        known.form(0, witness.followed_by("one_more"))
    with pytest.raises(ValueError, match="other nodes"):
        known.form(1, shorter)
    for wrong in (shorter, witness.followed_by("one_more")):
        with pytest.raises(ValueError, match="does not end"):
            known.cotangent_by(wrong, 0, at_logits("ball"))
    unequal = MultiplierWitness(witness.nodes, witness.multipliers[:-1])
    with pytest.raises(ValueError, match="zip"):
        known.cotangent_by(unequal, 0, at_logits("ball"))


def test_multipliers_cannot_be_changed() -> None:
    witness = whole_chain(network(0)).tuned(0, 5, hull=True)
    for each in witness.multipliers:
        assert each is None or not each.weights.flags.writeable


def test_forms_and_norms_of_values_follow_from_their_witnesses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, inputs, scope = network(2), ball((6,), 3.0), PointScope(Tier.FAST)
    facts = forward(graph, inputs, scope)
    chains = Chains.of(graph, facts, scope)
    known = chains.starting_at("x")
    assert known is not None
    found = centred_facts(graph, facts, scope, chains)
    forms = list(known.forms())
    no_search(monkeypatch)
    balls = EnclosingBall.several(inputs)
    points = [each.point() for each in balls]
    for number, (node, form, witness) in enumerate(forms, start=1):
        assert witness.nodes == tuple(each.name for each in known.nodes[:number])
        again = known.form(0, witness)
        assert form is not None
        assert again is not None
        assert again.scale == form.scale
        assert np.array_equal(again.matrix, form.matrix)
        points = [node.op.output_facts([point], scope) for point in points]
        bound = found[node.output].norm
        if bound.rule != "chain.output_norm":
            continue
        assert isinstance(bound.witness, MultiplierWitness)
        assert bound.witness.nodes == witness.nodes
        runs = (-1, again.size)
        values = [Interval(p.box.lo.reshape(runs), p.box.hi.reshape(runs)) for p in points]
        cases = zip(values, [each.radius for each in balls], strict=True)
        assert again.reach(cases) == bound.value
    assert any(facts.norm.rule == "chain.output_norm" for facts in found.values())


def test_scalars_need_no_multipliers() -> None:
    graph = chain(
        (6,),
        Scale(trained("s", np.array(2.0))),
        Dense(trained("w", np.random.default_rng(0).standard_normal((CLASSES, 6)))),
        Activation(functions.Relu()),
        Dense(trained("v", np.random.default_rng(1).standard_normal((CLASSES, CLASSES)))),
    )
    known = whole_chain(graph)
    assert known.tuned(0, 1, hull=False).multipliers == (None,)
    assert known.form(0, known.tuned(0, 1, hull=False)) is None
    witness = known.tuned(0, 4, hull=False)
    assert [each is None for each in witness.multipliers] == [True, True, False, True]
