"""Sums and concatenations: hulls, repeated values, extreme sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, CotangentFacts, PairHull, ValueFacts, no_bound
from lipcert.norms.operator_norm import Tier
from lipcert.ops.combine import Add, Concat
from lipcert.scope import PointScope
from lipcert.upper import ONE, Upper

POINT = PointScope(Tier.FAST)


def ball(shape: tuple[int, ...], radius: float = 1.0) -> ValueFacts:
    return ValueFacts.of(shape, Bound(Upper(radius), "test"))


def test_a_residual_sum_keeps_the_hull_of_whole_positive_terms() -> None:
    at_logits = CotangentFacts(Bound(Upper(1.5), "test"), PairHull(3, ONE))
    inputs = [ball((3,)), ball((3,)), ball((1,))]
    op = Add((2.0, -1.0, 1.0))
    first, second, third = (op.input_cotangent(i, at_logits, inputs, POINT) for i in range(3))
    assert first.hull == PairHull(3, Upper(2.0))
    assert second.hull is None
    assert third.hull is None
    assert third.norm.value.value == pytest.approx(1.5 * math.sqrt(3.0), rel=1e-14)


def test_sum_of_nonnegative_values_is_nonnegative() -> None:
    grown = ball((4,)).box.clip(0.0, math.inf)
    facts = ValueFacts.of((4,), Bound(ONE, "test"), grown)
    assert Add((1.0, 1.0)).output_facts([facts, facts], POINT).is_nonnegative


def test_concatenation_adds_squares_and_survives_huge_norms() -> None:
    op = Concat(0)
    assert op.output_facts([ball((2,), 3.0), ball((3,), 4.0)], POINT).norm.value == Upper(5.0)
    huge = op.output_facts([ball((2,), 1e200), ball((3,), 1e200)], POINT).norm
    assert huge.value.value >= math.sqrt(2.0) * 1e200
    assert huge.is_finite
    absent = ValueFacts.of((3,), no_bound("test", "nothing is known"))
    assert op.output_facts([ball((2,)), absent], POINT).norm.reason == "nothing is known"


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shapes=st.lists(
        st.sampled_from([(2, 3), (1, 3), (2, 1), (3,), (1,), (4, 2, 3)]), min_size=1, max_size=3
    ),
)
def test_jacobians_of_broadcast_sums_are_exact(seed: int, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(seed)
    op = Add(tuple(float(c) for c in rng.normal(size=len(shapes))))
    inputs = [ball(shape) for shape in shapes]
    for index, shape in enumerate(shapes):
        size = math.prod(shape)
        others = [np.zeros((size, *other)) for other in shapes]
        others[index] = np.eye(size).reshape(size, *shape)
        jacobian = op.evaluate(*others).reshape(size, -1)
        claimed = op.input_lipschitz(index, inputs, POINT).value.value
        assert claimed == pytest.approx(np.linalg.norm(jacobian, 2), rel=1e-12)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        Add((1.0, 1.0)).output_shape([(2,), (3,)])
    with pytest.raises(ValueError, match="coefficients"):
        Add((1.0,)).output_shape([(2,), (2,)])
    with pytest.raises(ValueError, match="finite"):
        Add((math.inf,))
    with pytest.raises(ValueError, match="concatenate"):
        Concat(0).output_shape([(2, 3), (2, 4)])
    with pytest.raises(ValueError, match="concatenate"):
        Concat(1).output_shape([(2,), (2,)])
    with pytest.raises(ValueError, match="front"):
        Concat(-1)
