"""Elementwise maps: hulls under temperatures and shifts, divisors near 0, constraints."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, CotangentFacts, PairHull, ValueFacts
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.operand import Operand
from lipcert.ops.affine import Divide, Scale, Shift
from lipcert.scope import Constraint, ConstraintKind, ConstraintScope, PointScope
from lipcert.upper import ONE, Upper

POINT = PointScope(Tier.FAST)
AT_LOGITS = CotangentFacts(Bound(Upper(1.5), "test"), PairHull(3, ONE, 0.1))


def ball(shape: tuple[int, ...], radius: float = 1.0) -> ValueFacts:
    return ValueFacts.of(shape, Bound(Upper(radius), "test"))


def test_a_temperature_scales_the_hull() -> None:
    inputs = [ball((3,))]
    colder = Scale(Operand(np.array(4.0))).input_cotangent(0, AT_LOGITS, inputs, POINT)
    warmer = Divide(Operand(np.full(3, 4.0))).input_cotangent(0, AT_LOGITS, inputs, POINT)
    assert colder.hull == PairHull(3, Upper(4.0), 0.1)
    assert colder.norm.value == Upper(6.0)
    assert warmer.hull is not None
    assert warmer.hull.scale.value == pytest.approx(0.25, rel=1e-15)
    assert warmer.hull.scale.value >= 0.25


@pytest.mark.parametrize("factor", [np.array(-1.0), np.array([1.0, 1.0, 2.0]), np.array(0.0)])
def test_other_factors_lose_the_hull(factor: np.ndarray) -> None:
    found = Scale(Operand(factor)).input_cotangent(0, AT_LOGITS, [ball((3,))], POINT)
    assert found.hull is None
    assert found.norm.is_finite


def test_a_trained_temperature_loses_the_hull_under_constraints() -> None:
    constraint = {"t": Constraint(ConstraintKind.SPECTRAL, Upper(2.0))}
    scope = ConstraintScope(constraint, frozenset({"t"}), Tier.FAST)
    found = Scale(Operand(np.array(1.0), "t")).input_cotangent(0, AT_LOGITS, [ball((3,))], scope)
    assert found.hull is None
    assert found.norm.value == Upper(3.0)


def test_a_shift_changes_no_cotangent() -> None:
    found = Shift(Operand(np.ones(3), "b")).input_cotangent(0, AT_LOGITS, [ball((3,))], POINT)
    assert found == AT_LOGITS


def test_a_divisor_that_may_vanish_has_no_bound() -> None:
    constraint = {"d": Constraint(ConstraintKind.FROBENIUS, Upper(2.0))}
    scope = ConstraintScope(constraint, frozenset({"d"}), Tier.FAST)
    op = Divide(Operand(np.ones(3), "d"))
    for answer in (
        op.output_facts([ball((3,))], scope).norm,
        op.input_lipschitz(0, [ball((3,))], scope),
        op.param_lipschitz([ball((3,))], scope)["divisor"],
        Divide(Operand(np.zeros(3))).input_lipschitz(0, [ball((3,))], POINT),
    ):
        assert not answer.is_finite
        assert "0" in answer.reason
        assert answer.remedy


def test_channel_bias_over_an_image() -> None:
    op = Shift(Operand(np.zeros((4, 1, 1)), "b"))
    found = op.param_lipschitz([ball((4, 10, 10))], POINT)["bias"]
    assert found.value.value == pytest.approx(10.0, rel=1e-15)


SHAPES = st.sampled_from([((3, 2, 2), (3, 1, 1)), ((2, 3), (3,)), ((4,), ()), ((2, 3), (2, 3))])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), shapes=SHAPES, op=st.sampled_from([Scale, Divide, Shift]))
def test_operand_jacobians_against_autograd(seed: int, shapes, op: type) -> None:
    rng = np.random.default_rng(seed)
    shape, small = shapes
    rule = op(Operand(rng.uniform(0.2, 2.0, size=small), "p"))
    x = rng.uniform(-1.0, 0.5, size=shape)
    box = Interval(np.minimum(x, 0.0), np.maximum(x, 0.0))
    facts = ValueFacts.of(shape, Bound(Upper(float(np.linalg.norm(x)) * 1.01), "test"), box)
    run = {Scale: torch.mul, Divide: torch.div, Shift: torch.add}[op]
    (operand,) = rule.operands().values()
    jacobian = torch.func.jacrev(lambda p: run(torch.tensor(x), p))(
        torch.tensor(operand.array.copy())
    )
    truth = np.linalg.norm(jacobian.reshape(math.prod(shape), -1).numpy(), 2)
    (claimed,) = rule.param_lipschitz([facts], POINT).values()
    assert truth <= claimed.value.value * (1 + 1e-12)
    if op is Scale:
        assert claimed.value.value <= truth * (1 + 1e-12)


def test_an_operand_must_broadcast_into_the_value() -> None:
    for op in (Scale, Divide, Shift):
        with pytest.raises(ValueError, match="broadcast"):
            op(Operand(np.ones((2, 3)))).output_shape([(3,)])
