"""Propagation against autograd on graphs whose shape is the difficulty."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lipcert.facts import Bound, CotangentFacts
from lipcert.ir import Graph
from lipcert.losses.factory import make_loss
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.activation import Activation
from lipcert.ops.affine import Divide, Scale, Shift
from lipcert.ops.combine import Add, Concat
from lipcert.ops.functions import Relu
from lipcert.ops.linear import Dense
from lipcert.ops.normalization import LayerNorm
from lipcert.ops.shape import Reshape, Transpose
from lipcert.ops.softmax import LogSoftmax
from lipcert.propagation.propagate import backward, forward, propagate
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope
from lipcert.upper import ONE, Upper
from tests.mirror import loss_value, parameters, run
from tests.networks import ball, chain, dag, norms, orthogonal, proved, trained, unit_loss

POINT = PointScope(Tier.FAST)


def cross_entropy():
    return make_loss("cross-entropy").cotangent


def test_a_value_that_is_used_three_times_adds_three_cotangents() -> None:
    graph = dag((2,), [("y", Add((1.0, -2.0)), ("x", "x")), ("z", Add((1.0, 1.0)), ("y", "x"))])
    bounds = proved(graph, ball((2,), 1.0))
    assert bounds.cotangents["x"].norm.value.value == 4.0
    assert bounds.lipschitz.value.value == 4.0  # the truth is 0: signs are not used


def test_a_value_nobody_uses_has_cotangent_zero() -> None:
    unused = trained("unused", np.eye(2))
    graph = dag(
        (2,),
        [
            ("dead", Dense(unused, None), ("x",)),
            ("y", Dense(trained("w", np.eye(2)), None), ("x",)),
        ],
    )
    bounds = proved(graph, ball((2,), 1.0))
    assert bounds.cotangents["dead"].norm.value.value == 0.0
    assert norms(bounds)["unused"] == 0.0
    assert norms(bounds)["w"] == 1.0


def test_an_output_that_is_also_used_inside_counts_both_uses() -> None:
    """The output is a value in the middle: what stands after it is dead."""
    steps = [
        ("y", Dense(trained("w", 2.0 * np.eye(2)), None), ("x",)),
        ("z", Dense(trained("v", np.eye(2)), None), ("y",)),
    ]
    whole = dag((2,), steps)
    graph = Graph("x", (2,), "y", whole.nodes, whole.parameters)
    bounds = proved(graph, ball((2,), 1.0))
    assert bounds.cotangents["y"].norm.value.value == 1.0
    assert norms(bounds) == {"w": 1.0, "v": 0.0}


def test_a_graph_without_nodes_is_the_identity() -> None:
    graph = Graph("x", (3,), "x", (), {})
    bounds = proved(graph, ball((3,), 2.0))
    assert bounds.lipschitz.value == ONE
    assert bounds.cotangents["x"].norm.value.value == 1.0


def test_a_parameter_seen_through_a_view_counts_its_gain() -> None:
    """y = W x + W x with W = 3θ: the gradient of θ is 6·cotangent·xᵀ."""
    view = Operand(3.0 * np.eye(2), "theta", Upper(3.0))
    steps = [("a", Dense(view, None), ("x",)), ("b", Add((1.0, 1.0)), ("a", "a"))]
    assert norms(proved(dag((2,), steps), ball((2,), 1.0)))["theta"] == pytest.approx(6.0)


def test_one_node_may_use_a_parameter_in_two_slots() -> None:
    shared = trained("s", np.ones(3))
    graph = chain((3,), LayerNorm(1, 0.1, shared, shared))
    bounds = proved(graph, ball((3,), 1.0))
    slopes = graph.nodes[0].op.param_lipschitz([ball((3,), 1.0)], POINT)
    expected = slopes["scale"].value.value + slopes["bias"].value.value
    assert norms(bounds)["s"] == pytest.approx(expected)


def test_folded_parameters_have_no_gradient_bound() -> None:
    graph = chain((2,), Dense(trained("w", np.eye(2)), None))
    folded = {"w": type(graph.parameters["w"])("w", (2, 2), folded=True)}
    graph = Graph("x", (2,), graph.output_name, graph.nodes, folded)
    bound = proved(graph, ball((2,), 1.0)).grad_norms["w"]
    assert not bound.is_finite
    assert "folded" in bound.reason


@pytest.mark.parametrize(
    ("ops", "factor"),
    [
        ((), 1.0),
        ((Shift(Operand(np.array([3.0, -1.0, 0.0]))),), 1.0),
        ((Scale(Operand(np.array(2.0))),), 2.0),
        ((Divide(Operand(np.array([4.0]))), Shift(Operand(np.ones(3)))), 0.25),
        ((LogSoftmax(-1),), 1.0),
        ((Reshape((1, 3)), LogSoftmax(-1), Reshape((3,))), 1.0),
    ],
)
def test_pairs_survive_what_keeps_the_hull(ops: tuple, factor: float) -> None:
    """The cotangent before the last layer is largest at one of the pairs, whatever follows."""
    weight = np.random.default_rng(0).standard_normal((3, 4)) + 2.0
    graph = chain((4,), Dense(trained("w", weight), None), *ops)
    bounds = proved(graph, ball((4,), 1e3), cross_entropy())
    pairs = max(float(np.linalg.norm(a - b)) for a in weight for b in weight)
    assert bounds.cotangents["x"].norm.value.value == pytest.approx(factor * pairs, rel=1e-6)
    assert factor * pairs < math.sqrt(2.0) * factor * np.linalg.norm(weight, 2)


@pytest.mark.parametrize(
    "ops",
    [
        (Scale(Operand(np.array(-1.0))),),
        (Scale(Operand(np.array([1.0, 2.0, 1.0]))),),
        (Activation(Relu()),),
        (Reshape((3, 1)), Transpose((1, 0))),
    ],
)
def test_what_may_break_the_hull_loses_it(ops: tuple) -> None:
    """The bound below is at most that of the chain rule, and above what autograd reaches."""
    weight = np.random.default_rng(1).standard_normal((3, 4)) + 2.0
    graph = chain((4,), Dense(trained("w", weight), None), *ops)
    bounds = proved(graph, ball((4,), 1e3), cross_entropy())
    assert bounds.cotangents["v0"].hull is None
    claimed = bounds.cotangents["x"].norm.value.value
    chained = bounds.cotangents["v0"].norm.value.value * np.linalg.norm(weight, 2)
    assert claimed <= chained * (1 + 1e-6)
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(64, 4, generator=generator, dtype=torch.float64)
    for x in 1e3 * directions / directions.norm(dim=1, keepdim=True):
        for label in torch.eye(3, dtype=torch.float64):
            leaf = x.clone().requires_grad_()
            logits = run(graph, leaf, parameters(graph, {}), {})[graph.output_name]
            loss = loss_value(make_loss("cross-entropy"), logits, label)
            (gradient,) = torch.autograd.grad(loss, leaf)
            assert float(gradient.norm()) <= claimed * (1 + 1e-9)


def test_the_hull_of_two_consumers_is_not_kept() -> None:
    graph = dag(
        (4,),
        [
            ("h", Dense(trained("w", orthogonal(4, 3)), None), ("x",)),
            ("y", Add((1.0, 1.0)), ("h", "h")),
        ],
    )
    bounds = proved(graph, ball((4,), 1e3), cross_entropy())
    assert bounds.cotangents["h"].hull is None
    assert bounds.cotangents["h"].norm.value.value == pytest.approx(
        2.0 * bounds.cotangents["y"].norm.value.value
    )


def test_an_absent_bound_reaches_only_what_stands_before_it() -> None:
    """LayerNorm without epsilon: no gradient bound before it, ordinary ones after."""
    graph = chain(
        (3,),
        Dense(trained("before", np.eye(3)), None),
        LayerNorm(1, 0.0),
        Dense(trained("after", np.eye(3)), None),
    )
    bounds = proved(graph, ball((3,), 1.0))
    assert bounds.grad_norms["after"].is_finite
    assert not bounds.grad_norms["before"].is_finite
    assert "epsilon" in bounds.grad_norms["before"].reason
    assert not bounds.lipschitz.is_finite


def test_constrained_weights_need_no_numbers_of_the_file() -> None:
    """The same bounds for two files that differ in trained weights only."""
    known = {
        "w": Constraint(ConstraintKind.SPECTRAL, Upper(1.0)),
        "b": Constraint(ConstraintKind.FROBENIUS, Upper(0.5)),
    }
    answers = []
    for seed in (0, 1):
        generator = np.random.default_rng(seed)
        weight, bias = generator.standard_normal((3, 3)), generator.standard_normal(3)
        graph = chain((3,), Dense(trained("w", weight), trained("b", bias)), Activation(Relu()))
        scope = ConstraintScope(known, frozenset(known), Tier.FAST)
        answers.append(norms(proved(graph, ball((3,), 2.0), unit_loss(), scope)))
    assert answers[0] == answers[1]


def test_observers_see_every_node_in_each_of_three_passes() -> None:
    seen: list[str] = []
    graph = chain((2,), Activation(Relu()), Reshape((1, 2)))
    propagate(graph, ball((2,), 1.0), POINT, unit_loss(), lambda node: seen.append(node.name))
    up, down = ["v0_node", "v1_node"], ["v1_node", "v0_node"]
    assert seen == [*up, *up, *down]


def test_concatenated_branches_against_autograd() -> None:
    """Two orthogonal branches side by side: the bound is that of one cotangent, spread on both."""
    left, right = orthogonal(3, 5), orthogonal(3, 6)
    graph = dag(
        (3,),
        [
            ("a", Dense(trained("l", left), None), ("x",)),
            ("b", Dense(trained("r", right), None), ("x",)),
            ("y", Concat(0), ("a", "b")),
        ],
    )
    facts = forward(graph, ball((3,), 1.0), POINT)
    unit = CotangentFacts(Bound(ONE, "test"))
    pulled = backward(graph, facts, unit, POINT)["x"].norm.value.value
    jacobian = torch.tensor(np.vstack([left, right]))
    assert float(torch.linalg.matrix_norm(jacobian, 2)) == pytest.approx(math.sqrt(2.0))
    assert pulled == pytest.approx(2.0)  # fan-out adds: √2 too large here, never too small
