"""A witness is reached by an admissible example: no bound is below, some are attained."""

import itertools

import numpy as np
import pytest

from lipcert.analysis.witness.aligned import aligned_graph
from lipcert.analysis.witness.search import NO_WITNESS, find_witness
from lipcert.losses.cosine import Cosine
from lipcert.losses.cross_entropy import CrossEntropy
from lipcert.losses.elementwise import BinaryCrossEntropy, SquaredError
from lipcert.norms.operator_norm import Tier
from lipcert.ops import functions
from lipcert.ops.activation import Activation
from lipcert.ops.linear import Dense
from lipcert.ops.reduction import Centre
from lipcert.ops.shape import Reshape
from lipcert.ops.softmax import Softmax
from lipcert.ops.sorting import Sort
from lipcert.propagation.propagate import propagate
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope
from lipcert.settings import ConstraintSpec
from lipcert.upper import Upper, root_sum_square
from tests.networks import ball, box, chain, trained
from tests.random_networks import random_case

RNG = np.random.default_rng(11)
RELU = Activation(functions.Relu())


def orthogonal(size):
    return np.linalg.qr(RNG.standard_normal((size, size)))[0]


def dense(name, weight, bias=None):
    return Dense(trained(f"w{name}", weight), None if bias is None else trained(f"b{name}", bias))


def pairs(size):
    return (Reshape((size // 2, 2)), Sort(1), Reshape((size,)))


def bounds(graph, loss, facts, scope=None, clip=None):
    found = propagate(graph, facts, scope or PointScope(Tier.FAST), loss.cotangent)
    joint = root_sum_square(bound.value for bound in found.grad_norms.values())
    return joint.value, found.lipschitz.value.value


@pytest.mark.parametrize("loss", [CrossEntropy(0.1), SquaredError(2.0), BinaryCrossEntropy(0.05)])
def test_orthogonal_networks_attain_their_bound(loss):
    size = 6
    graph = chain(
        (size,),
        dense(0, orthogonal(size)),
        *pairs(size),
        dense(1, orthogonal(size)),
        Activation(functions.Abs()),
        dense(2, orthogonal(size)),
    )
    facts = ball((size,), 5.0)
    grad_norm, lipschitz = bounds(graph, loss, facts)
    found = find_witness(graph, loss, facts, None)
    assert found.lipschitz == pytest.approx(lipschitz, rel=1e-6)
    assert found.lipschitz <= lipschitz
    assert found.grad_norm <= grad_norm
    if not isinstance(loss, BinaryCrossEntropy):  # its worst logits have equal magnitudes
        assert found.grad_norm == pytest.approx(grad_norm, rel=1e-6)


def test_one_linear_layer():
    graph = chain((5,), dense(0, RNG.standard_normal((2, 5)), RNG.standard_normal(2)))
    facts = ball((5,), 60.0)
    loss = CrossEntropy()
    grad_norm, lipschitz = bounds(graph, loss, facts)
    found = find_witness(graph, loss, facts, None)
    assert found.grad_norm == pytest.approx(grad_norm, rel=1e-6)
    assert found.lipschitz == pytest.approx(lipschitz, rel=1e-6)


def test_random_networks_do_not_exceed_their_bounds():
    searched = 0
    for seed in range(80):
        case = random_case(seed, 4)
        facts = case.domain.facts()
        found = find_witness(case.graph, case.loss, facts, None)
        if found is NO_WITNESS:
            continue
        searched += 1
        grad_norm, lipschitz = bounds(case.graph, case.loss, facts)
        assert found.grad_norm is None or found.grad_norm <= grad_norm
        assert found.lipschitz is None or found.lipschitz <= lipschitz
    assert searched >= 8


@pytest.mark.parametrize("kind", list(ConstraintKind))
@pytest.mark.parametrize("biased", [False, True])
def test_constraints_are_attained_by_aligned_weights(kind, biased):
    widths = (5, 7, 6, 2)
    layers = []
    for k, (before, after) in enumerate(itertools.pairwise(widths)):
        bias = np.zeros(after) if biased else None
        layers += [dense(k, RNG.standard_normal((after, before)), bias), RELU]
    graph = chain((5,), *layers[:-1])
    specs = {name: ConstraintSpec(kind.value, 3.0) for name in graph.parameters}
    specs |= {f"b{k}": ConstraintSpec("frobenius", 0.5) for k in range(3) if biased}
    scope = ConstraintScope(
        {n: Constraint(ConstraintKind(s.kind), Upper(s.radius)) for n, s in specs.items()},
        frozenset(graph.parameters),
        Tier.FAST,
    )
    facts, loss = box((5,), 0.0, 1.0), CrossEntropy()
    grad_norm, lipschitz = bounds(graph, loss, facts, scope)
    aligned = aligned_graph(graph, specs, facts)
    for node in aligned.nodes:
        for operand in node.op.operands().values():
            assert np.linalg.norm(operand.array) <= specs[operand.parameter].radius
    found = find_witness(aligned, loss, facts, None)
    assert found.grad_norm <= grad_norm
    assert found.grad_norm == pytest.approx(grad_norm, rel=1e-6)
    assert found.lipschitz == pytest.approx(lipschitz, rel=1e-6)


def test_weights_that_are_not_free_are_not_aligned():
    facts = ball((4,), 1.0)
    shared = dense(0, np.eye(4))
    specs = {"w0": ConstraintSpec("spectral", 1.0)}
    assert aligned_graph(chain((4,), shared, RELU, shared), specs, facts) is None
    assert aligned_graph(chain((4,), shared), {}, facts) is None
    assert aligned_graph(chain((4,), shared), specs, facts) is not None


def test_weights_that_let_nothing_through_are_no_witness():
    graph = chain((4,), dense(0, np.eye(4)), Centre((0,)), dense(1, np.eye(4)))
    specs = {name: ConstraintSpec("spectral", 1.0) for name in graph.parameters}
    assert aligned_graph(graph, specs, ball((4,), 1.0)) is None


def test_frozen_weights_stay():
    graph = chain((4,), Dense(trained("w0", np.eye(4))), RELU, Dense(trained("w1", 2 * np.eye(4))))
    specs = {"w0": ConstraintSpec("spectral", 1.0), "w1": ConstraintSpec("spectral", 1.0)}
    frozen = graph.parameters["w1"]
    object.__setattr__(frozen, "trainable", False)
    aligned = aligned_graph(graph, specs, ball((4,), 1.0))
    assert np.array_equal(aligned.nodes[2].op.weight.array, 2 * np.eye(4))


def test_a_clip_of_the_loss_gradient_is_part_of_the_run():
    graph, facts = chain((5,), dense(0, 3.0 * RNG.standard_normal((2, 5)))), ball((5,), 9.0)
    free = find_witness(graph, CrossEntropy(), facts, None)
    clipped = find_witness(graph, CrossEntropy(), facts, 0.25)
    assert clipped.grad_norm == pytest.approx(0.25 * 9.0, rel=1e-6)
    assert free.grad_norm == pytest.approx(2**0.5 * 9.0, rel=1e-6)


def test_nothing_is_said_where_nothing_is_known():
    facts, plain = ball((4,), 1.0), dense(0, np.eye(4))
    assert find_witness(chain((4,), plain, Softmax(0)), CrossEntropy(), facts, None) is NO_WITNESS
    assert find_witness(chain((4,), plain), Cosine(1.0), facts, None) is NO_WITNESS
    large = chain((900,), dense(0, np.zeros((900, 900))))
    assert find_witness(large, CrossEntropy(), ball((900,), 1.0), None) is NO_WITNESS


def test_it_is_deterministic():
    graph = chain((6,), dense(0, RNG.standard_normal((8, 6))), RELU, dense(1, np.ones((3, 8))))
    facts = box((6,), 0.0, 1.0)
    first, second = (find_witness(graph, CrossEntropy(), facts, None) for _ in range(2))
    assert first == second


def test_what_overflows_is_no_witness():
    graph = chain((4,), dense(0, 1e200 * np.eye(4)), dense(1, 1e200 * np.eye(4)))
    found = find_witness(graph, SquaredError(1.0), ball((4,), 1.0), None)
    assert found.grad_norm in {None, 0.0}
    assert found.lipschitz is None


def test_the_gradient_of_a_zero_network_is_zero():
    graph = chain((4,), dense(0, np.zeros((3, 4))))
    found = find_witness(graph, SquaredError(0.0), ball((4,), 0.0), None)
    assert found.grad_norm == 0.0
