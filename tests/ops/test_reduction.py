"""Sums, means, centring and division by norms: exact norms, exact rational boxes, axes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, Runs, ValueFacts
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.ops.reduced_norm import DivideByNorm
from lipcert.ops.reduction import Centre, ReduceMean, ReduceSum
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


def facts(shape, norm, box=None, runs=None):
    interval = None if box is None else Interval(*(np.full(shape, end) for end in box))
    return ValueFacts.of(shape, Bound(Upper(norm), "test"), interval, runs)


def test_centring_a_box_halves_its_norm():
    found = Centre((0, 1)).output_facts([facts((4, 9), 6.0, (0.0, 1.0))], POINT)
    assert found.norm.value.value == pytest.approx(3.0)  # half of the entries at each end
    assert found.norm.value.value >= 3.0
    shifted = Centre((1,)).output_facts([facts((4, 9), 1e9, (7.0, 8.0))], POINT)
    assert shifted.norm.value.value == pytest.approx(3.0)
    unknown = Centre((0,)).output_facts([facts((4, 9), 2.0)], POINT)
    assert unknown.norm.value.value == 2.0
    single = Centre((0,)).output_facts([facts((1, 9), 2.0)], POINT)
    assert single.norm.value.value == 0.0


def test_centring_keeps_runs_along_its_own_axis_only():
    x = facts((4, 9), 6.0, runs=Runs(1, Upper(2.0)))
    assert Centre((1,)).output_facts([x], POINT).runs == Runs(1, Upper(2.0))
    assert Centre((0,)).output_facts([x], POINT).runs is None


@pytest.mark.parametrize("op", [Centre((2,)), Centre((0, 0)), Centre(()), DivideByNorm((2,), 1, 1)])
def test_axes_must_exist(op):
    with pytest.raises(ValueError, match="do not fit"):
        op.output_shape([(4, 9)])


def test_a_mean_of_nothing_is_no_number():
    with pytest.raises(ValueError, match="no terms"):
        Centre((0,)).output_shape([(0, 3)])


@pytest.mark.parametrize("numbers", [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)])
def test_division_by_a_norm_needs_positive_numbers(numbers):
    with pytest.raises(ValueError, match="positive"):
        DivideByNorm((0,), *numbers)


def test_division_by_a_norm_keeps_signs_and_shares():
    op = DivideByNorm((1,), 2.0, 0.5)
    found = op.output_facts([facts((4, 9), 100.0, (0.0, 50.0))], POINT)
    assert found.norm.value.value == pytest.approx(2.0 * 2.0)  # four slices of norm 2
    assert found.runs == Runs(1, Upper(2.0))
    assert (found.box.lo.min(), found.box.hi.max()) == (0.0, 2.0)
    near = op.output_facts([facts((4, 9), 0.1)], POINT)
    assert near.norm.value.value == pytest.approx(0.2)
