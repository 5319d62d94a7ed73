"""Interval arrays: every operation encloses the exact result."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lipcert.interval import Interval
from lipcert.upper import Upper

finite = st.floats(-1e6, 1e6)
triples = hnp.arrays(np.float64, 3, elements=finite)


def boxes() -> st.SearchStrategy[Interval]:
    return st.tuples(triples, triples).map(
        lambda ends: Interval(np.minimum(*ends), np.maximum(*ends))
    )


def inside(value: Fraction, low: float, high: float) -> bool:
    return (low == -np.inf or Fraction(low) <= value) and (
        high == np.inf or value <= Fraction(high)
    )


@given(boxes(), boxes(), st.tuples(*[st.floats(0, 1)] * 2))
def test_sum_difference_product_enclose(a: Interval, b: Interval, at: tuple[float, float]) -> None:
    x = a.lo + np.float64(at[0] > 0.5) * (a.hi - a.lo)
    y = b.lo + np.float64(at[1] > 0.5) * (b.hi - b.lo)
    x, y = np.clip(x, a.lo, a.hi), np.clip(y, b.lo, b.hi)
    results = (a + b, a - b, a * b)
    for k in range(3):
        p, q = Fraction(float(x[k])), Fraction(float(y[k]))
        for result, exact in zip(results, (p + q, p - q, p * q), strict=True):
            assert inside(exact, result.lo[k], result.hi[k])


@given(
    hnp.arrays(np.float64, (2, 4), elements=finite),
    hnp.arrays(np.float64, (4, 3), elements=finite),
    hnp.arrays(np.float64, (2, 4), elements=st.floats(0, 10)),
)
def test_matmul_encloses(centre: np.ndarray, matrix: np.ndarray, width: np.ndarray) -> None:
    box = Interval(centre - width, centre + width)
    result = box.matmul(Interval.exact(matrix))
    for end in (box.lo, box.hi, np.where(matrix.sum(1) > 0, box.lo, box.hi)):
        for i in range(2):
            for j in range(3):
                exact = sum(
                    Fraction(float(end[i, k])) * Fraction(float(matrix[k, j])) for k in range(4)
                )
                assert inside(exact, result.lo[i, j], result.hi[i, j])


@given(boxes())
def test_sum_over_axes_encloses(box: Interval) -> None:
    result = box.sum((0,))
    assert inside(sum(map(Fraction, box.lo.tolist()), Fraction(0)), float(result.lo), np.inf)
    assert inside(sum(map(Fraction, box.hi.tolist()), Fraction(0)), -np.inf, float(result.hi))


@given(boxes())
def test_norm_and_magnitude(box: Interval) -> None:
    worst = np.maximum(np.abs(box.lo), np.abs(box.hi))
    exact = sum((Fraction(float(v)) ** 2 for v in worst), Fraction(0))
    assert Fraction(box.norm().value) ** 2 >= exact
    assert box.max_abs().value == float(worst.max())


@given(boxes())
def test_reciprocal_encloses(box: Interval) -> None:
    result = box.reciprocal()
    for k in range(3):
        for end in (box.lo[k], box.hi[k]):
            if end != 0.0:
                assert inside(1 / Fraction(float(end)), result.lo[k], result.hi[k])


def test_widen_moves_both_ends_but_not_by_default() -> None:
    box = Interval(np.array([0.0, 1.0]), np.array([0.0, 2.0]))
    wide = box.widen(4)
    assert np.all(wide.lo < box.lo)
    assert np.all(wide.hi > box.hi)
    assert box.monotone(np.copy, ulps=0).is_exact is False
    assert np.array_equal(box.monotone(np.copy, ulps=0).hi, box.hi)


def test_malformed_intervals_are_refused() -> None:
    with pytest.raises(ValueError, match="lo <= hi"):
        Interval(np.array([1.0]), np.array([0.0]))
    with pytest.raises(ValueError, match="lo <= hi"):
        Interval(np.array([np.nan]), np.array([0.0]))


def test_unknown_entries_stay_unknown() -> None:
    line = Interval(np.array([-np.inf]), np.array([np.inf]))
    one = Interval.exact(np.array([1.0]))
    assert (line + one).hi[0] == np.inf
    assert (line - line).lo[0] == -np.inf
    assert not line.norm().is_finite
    assert line.matmul(Interval.exact(np.ones((1, 1)))).hi[0] == np.inf


def test_symmetric_and_set_operations() -> None:
    ball = Interval.symmetric(Upper(2.0), (2,))
    unit = Interval(np.zeros(2), np.ones(2))
    assert np.array_equal(ball.intersect(unit).hi, np.ones(2))
    assert np.array_equal(ball.hull(unit).lo, np.full(2, -2.0))


def test_products_with_unknown_ends_treat_zero_as_zero() -> None:
    unknown = Interval(np.full(3, -np.inf), np.array([np.inf, 1.0, np.inf]))
    product = unknown * Interval.exact(np.array([0.0, 2.0, -1.0]))
    assert abs(product.lo[0]) < 1e-300
    assert abs(product.hi[0]) < 1e-300
    assert product.lo[1] == -np.inf
    assert product.hi[1] == pytest.approx(2.0)
    assert (product.lo[2], product.hi[2]) == (-np.inf, np.inf)


@given(boxes(), boxes())
def test_repeated_entries_are_treated_like_any_others(a: Interval, b: Interval) -> None:
    """What is done once for entries that a broadcast repeats is what would be done for each."""
    wide = a.map(lambda end: end[:, None]).broadcast((3, 4))
    full = wide.map(np.array)
    for left, right in (
        (wide + b.map(lambda end: end[:, None]), full + b.map(lambda end: end[:, None])),
        (wide * wide, full * full),
        (-wide, -full),
        (wide.widen(3), full.widen(3)),
        (wide.monotone(np.tanh, ulps=4), full.monotone(np.tanh, ulps=4)),
        (wide.clip(-1.0, 1e7).absolute(), full.clip(-1.0, 1e7).absolute()),
    ):
        assert left.shape == right.shape == (3, 4)
        np.testing.assert_array_equal(left.lo, right.lo)
        np.testing.assert_array_equal(left.hi, right.hi)
    exact = sum(Fraction(float(value)) ** 2 for value in np.ravel(full.magnitude()))
    assert Fraction(wide.norm().value) ** 2 >= exact
    assert wide.norm().value == pytest.approx(full.norm().value, rel=1e-12)


def test_a_matrix_product_that_overflows_is_unknown() -> None:
    large = Interval.exact(np.full((1, 2), 1e200))
    product = large.matmul(Interval.exact(np.full((2, 1), 1e200)))
    assert (product.lo[0, 0], product.hi[0, 0]) == (-np.inf, np.inf)
