"""Sums and means: exact norms, exact rational boxes, axes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, ValueFacts
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.ops.reduction import ReduceMean, ReduceSum
from lipcert.scope import PointScope
from lipcert.upper import Upper

POINT = PointScope(Tier.QUICK)


def unit(shape) -> ValueFacts:
    return ValueFacts.of(shape, Bound(Upper(1.0), "test"))


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.data(),
    st.booleans(),
    st.sampled_from([ReduceSum, ReduceMean]),
)
@settings(max_examples=60, deadline=None)
def test_norm_and_value_follow_the_matrix(shape, data, keepdims, kind) -> None:
    shape = tuple(shape)
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1))))
    op = kind(axes, keepdims)
    basis = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    columns = op.evaluate(basis)
    assert columns.shape[1:] == op.output_shape([shape])
    true = np.linalg.norm(columns.reshape(len(basis), -1), 2)
    stated = op.input_lipschitz(0, [unit(shape)], POINT).value.value
    assert stated == pytest.approx(true, rel=1e-14)
    negative = kind(tuple(axis - len(shape) for axis in axes), keepdims)
    np.testing.assert_array_equal(negative.evaluate(basis), columns)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_boxes_hold_the_exact_rational_result(entries) -> None:
    x = np.array(entries)
    facts = ValueFacts.of(x.shape, Bound(Upper(1e9), "test"), Interval.exact(x))
    exact = sum(map(Fraction, entries))
    for op, value in ((ReduceSum((0,)), exact), (ReduceMean((0,)), exact / len(entries))):
        box = op.output_facts([facts], POINT).box
        assert Fraction(float(box.lo)) <= value <= Fraction(float(box.hi))


def test_known_answers() -> None:
    assert ReduceMean((1, 2)).input_lipschitz(0, [unit((3, 4, 4))], POINT).value.value == 0.25
    assert ReduceSum((1, 2)).input_lipschitz(0, [unit((3, 4, 4))], POINT).value.value == 4.0
    third = ReduceMean((0,)).input_lipschitz(0, [unit((3,))], POINT).value.value
    assert Fraction(third) ** 2 >= Fraction(1, 3)


@pytest.mark.parametrize("axes", [(2,), (-3,), (0, 0), (0, -2)])
def test_axes_are_checked(axes) -> None:
    with pytest.raises(ValueError, match="axes"):
        ReduceSum(axes).output_shape([(2, 3)])


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no terms"):
        ReduceMean((0,)).output_shape([(0, 3)])
