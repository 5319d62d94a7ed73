"""Dense layers: pairs of logit gradients, joint Jacobians, sharper output norms, constraints."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, CotangentFacts, PairHull, ValueFacts
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.linear import Dense, pair_norm
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope
from lipcert.upper import ONE, Upper

POINT = PointScope(Tier.FAST)


def ball(shape: tuple[int, ...], radius: float) -> ValueFacts:
    return ValueFacts.of(shape, Bound(Upper(radius), "test"))


def cube(shape: tuple[int, ...], low: float, high: float) -> ValueFacts:
    box = Interval(np.full(shape, low), np.full(shape, high))
    return ValueFacts.of(shape, Bound(box.norm(), "test"), box)


def exact_pair_square(weight: np.ndarray, smoothing: float) -> Fraction:
    """max ‖Wᵀ(e_j − t_y)‖² in rational arithmetic."""
    rows = [[Fraction(float(entry)) for entry in row] for row in weight]
    classes, s = len(rows), Fraction(smoothing)
    mean = [sum(column) / classes for column in zip(*rows, strict=True)]
    targets = [
        [(1 - s) * entry + s * m for entry, m in zip(row, mean, strict=True)] for row in rows
    ]
    return max(
        sum((a - b) ** 2 for a, b in zip(row, target, strict=True))
        for row in rows
        for target in targets
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    classes=st.integers(1, 6),
    width=st.integers(1, 5),
    smoothing=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    offset=st.sampled_from([0.0, 1.0, 1e6]),
    scale=st.sampled_from([1.0, 1e-150, 1e150, 3e-308]),
)
def test_pair_norm_is_at_least_the_exact_one(
    seed: int, classes: int, width: int, smoothing: float, offset: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    weight = (rng.normal(size=(classes, width)) + offset) * scale
    claimed = pair_norm(weight, PairHull(classes, ONE, smoothing)).value
    exact = exact_pair_square(weight, smoothing)
    assert Fraction(claimed) ** 2 >= exact
    if classes > 1 and smoothing < 1 and scale != 3e-308:
        slack = 1 + 1e-9 if offset == 1e6 else 1 + 1e-12
        assert Fraction(claimed) ** 2 <= exact * Fraction(slack) ** 2


def test_pair_norm_of_extreme_weights() -> None:
    largest = np.array([[1.7e308], [0.0]])
    assert pair_norm(largest, PairHull(2, ONE)).value >= 1.7e308
    assert pair_norm(np.zeros((3, 2)), PairHull(3, ONE)).value == 0.0
    smallest = np.array([[5e-324], [0.0]])
    assert pair_norm(smallest, PairHull(2, ONE)).value >= 5e-324
    mixed = np.array([[1e300, 1e-300], [1e300, -1e-300]])
    assert pair_norm(mixed, PairHull(2, ONE)).value >= 2e-300


def test_pair_norm_with_many_classes_works_in_blocks() -> None:
    weight = np.random.default_rng(0).normal(size=(3000, 3))
    claimed = pair_norm(weight, PairHull(3000, Upper(2.0))).value
    truth = 2.0 * max(float(np.max(np.linalg.norm(weight - row, axis=1))) for row in weight)
    assert truth <= claimed <= truth * (1 + 1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cotangent_of_cross_entropy_stays_below_the_pair_bound(smoothing: float) -> None:
    rng = np.random.default_rng(1)
    op = Dense(Operand(rng.normal(size=(6, 9)) + 3.0, "w"))
    hull = PairHull(6, ONE, smoothing)
    at_logits = CotangentFacts(Bound(Upper(math.sqrt(2.0) + 1e-12), "test"), hull)
    claimed = op.input_cotangent(0, at_logits, [ball((9,), 1.0)], POINT).norm
    assert claimed.rule == "dense.input_cotangent.pairs"
    assert claimed.value < op.operator_norm(POINT).value * Upper(math.sqrt(2.0))
    logits = torch.tensor(rng.normal(size=(4000, 6)) * 20.0, requires_grad=True)
    labels = torch.tensor(rng.integers(0, 6, size=4000))
    loss = torch.nn.functional.cross_entropy(
        logits, labels, reduction="sum", label_smoothing=smoothing
    )
    (gradient,) = torch.autograd.grad(loss, logits)
    reached = np.linalg.norm(gradient.numpy() @ op.weight.array, axis=1).max()
    assert 0.99 * claimed.value.value <= reached <= claimed.value.value


def test_cotangent_falls_back_to_the_chain_rule() -> None:
    weight = Operand(np.eye(3), "w")
    at_logits = CotangentFacts(Bound(Upper(2.0), "test"), PairHull(3, ONE))
    tokens = Dense(weight).input_cotangent(0, at_logits, [ball((2, 3), 1.0)], POINT)
    other = CotangentFacts(at_logits.norm, PairHull(4, ONE))
    mismatch = Dense(weight).input_cotangent(0, other, [ball((3,), 1.0)], POINT)
    constraint = {"w": Constraint(ConstraintKind.SPECTRAL, Upper(1.0))}
    scope = ConstraintScope(constraint, frozenset({"w"}), Tier.FAST)
    unknown = Dense(weight).input_cotangent(0, at_logits, [ball((3,), 1.0)], scope)
    for found in (tokens, mismatch, unknown):
        assert found.norm.rule == "cotangent.chain_rule"
        assert found.norm.value.value == pytest.approx(2.0, rel=1e-6)
        assert found.hull is None


def test_joint_jacobian_is_the_root_sum_of_squares() -> None:
    x = np.random.default_rng(2).normal(size=5)
    length = float(np.linalg.norm(x))
    op = Dense(Operand(np.zeros((3, 5)), "w"), Operand(np.zeros(3), "b"))
    found = op.param_lipschitz([ball((5,), length)], POINT)
    joint = np.hstack([np.kron(np.eye(3), x[None, :]), np.eye(3)])
    rule = math.hypot(found["weight"].value.value, found["bias"].value.value)
    assert np.linalg.norm(joint, 2) == pytest.approx(rule, rel=1e-12)
    assert rule == pytest.approx(math.sqrt(length**2 + 1), rel=1e-12)


def test_bias_outside_the_range_of_the_weight_adds_in_squares() -> None:
    op = Dense(Operand(np.diag([3.0, 3.0, 0.0]), "w"), Operand(np.array([0.0, 0.0, 4.0]), "b"))
    found = op.output_facts([ball((3,), 1.0)], POINT).norm
    assert found.rule == "dense.output_norm.expanded"
    assert found.value.value == pytest.approx(5.0, rel=1e-6)


def test_centre_of_the_box_is_used() -> None:
    """W 1 = 0, so the centre ½·1 of the cube is mapped to 0."""
    centring = np.eye(16) - 1 / 16
    found = Dense(Operand(centring, "w")).output_facts([cube((16,), 0.0, 1.0)], POINT).norm
    assert found.value.value == pytest.approx(2.0, rel=1e-6)


def test_box_of_one_row_is_attained() -> None:
    op = Dense(Operand(np.array([[2.0, -3.0, 0.5]]), "w"), Operand(np.array([1.0]), "b"))
    box = op.output_facts([cube((3,), -1.0, 2.0)], POINT).box
    assert box.lo.item() == pytest.approx(1.0 - 2.0 - 6.0 - 0.5, rel=1e-12)
    assert box.hi.item() == pytest.approx(1.0 + 4.0 + 3.0 + 1.0, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(list(ConstraintKind)),
    tokens=st.integers(1, 3),
    low=st.sampled_from([-1.0, 0.0]),
)
def test_constraint_scope_covers_every_admissible_weight(
    seed: int, kind: ConstraintKind, tokens: int, low: float
) -> None:
    rng = np.random.default_rng(seed)
    op = Dense(Operand(rng.normal(size=(4, 3)), "w"), Operand(rng.normal(size=4), "b"))
    constraints = {
        "w": Constraint(kind, Upper(1.5)),
        "b": Constraint(ConstraintKind.FROBENIUS, Upper(0.5)),
    }
    scope = ConstraintScope(constraints, frozenset(constraints), Tier.FAST)
    facts = op.output_facts([cube((tokens, 3), low, 1.0)], scope)
    weight, bias = rng.normal(size=(4, 3)), rng.normal(size=4)
    weight *= 1.5 / np.linalg.norm(weight, 2 if kind is ConstraintKind.SPECTRAL else None)
    bias *= 0.5 / np.linalg.norm(bias)
    y = rng.uniform(low, 1.0, size=(tokens, 3)) @ weight.T + bias
    assert np.linalg.norm(y) <= facts.norm.value.value
    assert np.all((facts.box.lo <= y) & (y <= facts.box.hi))


def test_unconstrained_parameters_say_so() -> None:
    op = Dense(Operand(np.eye(2), "w"), Operand(np.ones(2), "b"))
    scope = ConstraintScope({}, frozenset({"w", "b"}), Tier.FAST)
    for answer in (
        op.output_facts([cube((2,), 0.0, 1.0)], scope).norm,
        op.input_lipschitz(0, [ball((2,), 1.0)], scope),
    ):
        assert not answer.is_finite
        assert "'w'" in answer.reason


def test_wrong_shapes_are_refused() -> None:
    op = Dense(Operand(np.ones((2, 3)), "w"))
    with pytest.raises(ValueError, match="does not fit"):
        op.output_shape([(4,)])
    with pytest.raises(ValueError, match="two axes"):
        Dense(Operand(np.ones(3)))
    with pytest.raises(ValueError, match="bias"):
        Dense(Operand(np.ones((2, 3))), Operand(np.ones(3)))
