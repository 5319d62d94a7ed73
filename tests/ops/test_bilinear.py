"""Products of values: absent bounds, squares, Jacobians of any broadcasting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, ValueFacts, no_bound
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.ops.bilinear import MatMul, Multiply
from lipcert.scope import PointScope
from lipcert.upper import Upper

POINT = PointScope(Tier.FAST)


def ball(shape: tuple[int, ...], radius: float = 1.0) -> ValueFacts:
    return ValueFacts.of(shape, Bound(Upper(radius), "test"))


def around(x: np.ndarray) -> ValueFacts:
    """Facts that hold of x and of little else."""
    box = Interval(np.minimum(x, 0.0), np.maximum(x, 0.0))
    return ValueFacts.of(x.shape, Bound(Upper(float(np.linalg.norm(x)) * 1.001), "test"), box)


@pytest.mark.parametrize("op", [Multiply(), MatMul()])
def test_an_unbounded_factor_is_explained(op: Multiply | MatMul) -> None:
    unknown = ValueFacts.of((2, 2), no_bound("test", "no domain was given"))
    inputs = [ball((2, 2)), unknown]
    for answer in (op.input_lipschitz(0, inputs, POINT), op.output_facts(inputs, POINT).norm):
        assert not answer.is_finite
        assert "no domain was given" in answer.reason
        assert answer.remedy
    assert op.input_lipschitz(1, inputs, POINT).is_finite


def test_a_square_is_counted_twice_by_fan_out() -> None:
    inputs = [ball((5,), 3.0)] * 2
    slope = sum(Multiply().input_lipschitz(i, inputs, POINT).value.value for i in range(2))
    assert slope == pytest.approx(6.0)
    assert Multiply().output_facts(inputs, POINT).norm.value.value == pytest.approx(9.0)


def test_a_gate_between_zero_and_one_does_not_stretch() -> None:
    gate = ValueFacts.of((100,), Bound(Upper(10.0), "test"), Interval(np.zeros(100), np.ones(100)))
    inputs = [ball((100,), 7.0), gate]
    assert Multiply().input_lipschitz(0, inputs, POINT).value.value == pytest.approx(1.0)
    assert Multiply().output_facts(inputs, POINT).norm.value.value == pytest.approx(7.0)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shapes=st.sampled_from(
        [
            ((2, 3), (2, 3)),
            ((2, 3), (3,)),
            ((2, 1), (1, 3)),
            ((2, 1, 2), (3, 1)),
            ((1,), (4,)),
            ((2, 2, 1), (1, 2, 3)),
        ]
    ),
    sparse=st.booleans(),
)
def test_multiply_against_explicit_jacobians(seed: int, shapes, sparse: bool) -> None:
    check(Multiply(), torch.mul, shapes, seed, sparse)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shapes=st.sampled_from(
        [
            ((2, 3), (3, 2)),
            ((2, 2, 3), (2, 3, 1)),
            ((2, 3), (2, 3, 2)),
            ((2, 1, 2, 2), (1, 3, 2, 2)),
            ((3, 1, 2), (2, 2)),
            ((1, 2, 2), (3, 2, 2)),
        ]
    ),
    sparse=st.booleans(),
)
def test_matmul_against_explicit_jacobians(seed: int, shapes, sparse: bool) -> None:
    check(MatMul(), torch.matmul, shapes, seed, sparse)


def check(op: Multiply | MatMul, run, shapes, seed: int, sparse: bool) -> None:
    rng = np.random.default_rng(seed)
    values = [
        rng.normal(size=shape) * (rng.random(shape) < (0.4 if sparse else 2)) for shape in shapes
    ]
    inputs = [around(value) for value in values]
    tensors = [torch.tensor(value) for value in values]
    truth = run(*tensors).numpy()
    facts = op.output_facts(inputs, POINT)
    assert facts.shape == truth.shape
    np.testing.assert_allclose(op.evaluate(*(v[None] for v in values))[0], truth, atol=1e-12)
    assert np.linalg.norm(truth) <= facts.norm.value.value * (1 + 1e-12)
    box = facts.box.broadcast(facts.shape)
    assert np.all((box.lo <= truth) & (truth <= box.hi))
    for index in range(2):
        jacobian = torch.func.jacrev(run, argnums=index)(*tensors)
        flat = jacobian.reshape(truth.size, math.prod(shapes[index])).numpy()
        claimed = op.input_lipschitz(index, inputs, POINT).value.value
        assert np.linalg.norm(flat, 2) <= claimed * (1 + 1e-12)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="multiplied"):
        MatMul().output_shape([(2, 3), (2, 3)])
    with pytest.raises(ValueError, match="multiplied"):
        MatMul().output_shape([(3,), (3, 2)])
    with pytest.raises(ValueError, match="broadcast"):
        Multiply().output_shape([(2,), (3,)])
