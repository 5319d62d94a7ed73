"""Directed rounding against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lipcert.upper import (
    INFINITE,
    ONE,
    Lower,
    Upper,
    gamma,
    norm,
    norm_lower,
    root_sum_square,
    total,
)

numbers = st.floats(0.0, 1e300, allow_subnormal=True)
small = st.floats(0.0, 1e100)
entries = st.floats(-1e100, 1e100, allow_subnormal=True)


@given(numbers, numbers)
def test_sum_is_the_smallest_double_above(a: float, b: float) -> None:
    result = (Upper(a) + Upper(b)).value
    exact = Fraction(a) + Fraction(b)
    assert Fraction(result) >= exact
    below = math.nextafter(result, 0.0)
    assert result == 0.0 or Fraction(below) < exact


@given(small, small)
def test_product_is_the_smallest_double_above(a: float, b: float) -> None:
    result = (Upper(a) * Upper(b)).value
    exact = Fraction(a) * Fraction(b)
    assert Fraction(result) >= exact
    assert result == 0.0 or Fraction(math.nextafter(result, 0.0)) < exact


@given(numbers)
def test_square_root_is_above(a: float) -> None:
    root = Fraction(Upper(a).sqrt().value)
    assert root**2 >= Fraction(a)
    assert Fraction(Lower(a).sqrt().value) ** 2 <= Fraction(a)


@given(small, st.floats(1e-100, 1e100))
def test_quotients_bracket_the_truth(a: float, b: float) -> None:
    exact = Fraction(a) / Fraction(b)
    assert Fraction(Upper(a).over(Lower(b)).value) >= exact
    assert Fraction(Lower(a).over(Upper(b)).value) <= exact


@given(small, small)
def test_lower_is_below(a: float, b: float) -> None:
    assert Fraction((Lower(a) + Lower(b)).value) <= Fraction(a) + Fraction(b)
    assert Fraction((Lower(a) * Lower(b)).value) <= Fraction(a) * Fraction(b)


def test_exact_results_are_not_moved() -> None:
    assert (Upper(28.0) * ONE).value == 28.0
    assert (Upper(3.0) + Upper(4.0)).value == 7.0
    assert Upper(49.0).sqrt().value == 7.0


def test_nearest_rounding_would_be_below() -> None:
    """The case that a round-to-nearest product gets wrong."""
    below = [
        (a, b)
        for a in (1.1, 1.3, 1.7)
        for b in (0.1, 0.3, 0.7)
        if Fraction(a * b) < Fraction(a) * Fraction(b)
    ]
    assert below
    for a, b in below:
        assert (Upper(a) * Upper(b)).value > a * b


@pytest.mark.parametrize("value", [-1.0, math.nan, -math.inf])
def test_only_non_negative_numbers_are_bounds(value: float) -> None:
    with pytest.raises(ValueError, match="non-negative"):
        Upper(value)


def test_no_bound_stays_no_bound() -> None:
    assert (INFINITE * Upper(0.0)) == INFINITE
    assert (INFINITE + ONE) == INFINITE
    assert INFINITE.sqrt() == INFINITE
    assert Upper(1.0).over(Lower(0.0)) == INFINITE
    assert not hasattr(Upper, "__sub__")
    assert not hasattr(Upper, "__truediv__")
    assert not hasattr(Upper, "__float__")


@given(st.lists(numbers, max_size=6))
def test_collections(values: list[float]) -> None:
    bounds = [Upper(value) for value in values]
    assert Fraction(total(bounds).value) >= sum(map(Fraction, values), Fraction(0)) or math.isinf(
        total(bounds).value
    )


@given(st.lists(small, max_size=6))
def test_root_sum_square(values: list[float]) -> None:
    result = Fraction(root_sum_square([Upper(value) for value in values]).value)
    assert result**2 >= sum((Fraction(value) ** 2 for value in values), Fraction(0))


@given(st.lists(st.floats(min_value=1e100, max_value=1e307), min_size=2, max_size=6))
def test_root_sum_square_of_numbers_whose_squares_overflow(values: list[float]) -> None:
    result = Fraction(root_sum_square([Upper(value) for value in values]).value)
    exact = sum(Fraction(value) ** 2 for value in values)
    assert exact <= result**2 <= exact * (1 + Fraction(1, 10**14))


@given(st.integers(0, 10**9))
def test_gamma_is_above(terms: int) -> None:
    u = Fraction(1, 2**53)
    assert Fraction(gamma(terms).value) >= terms * u / (1 - terms * u)


def test_gamma_refuses_hopeless_sums() -> None:
    with pytest.raises(ValueError, match="no useful"):
        gamma(2**53)


@given(hnp.arrays(np.float64, st.integers(0, 12), elements=entries))
def test_norm_brackets_the_exact_norm(vector: np.ndarray) -> None:
    exact = sum((Fraction(float(v)) ** 2 for v in vector), Fraction(0))
    assert Fraction(norm(vector).value) ** 2 >= exact
    assert Fraction(norm_lower(vector).value) ** 2 <= exact


def test_norm_of_extreme_arrays() -> None:
    assert norm(np.zeros(5)).value == 0.0
    assert norm(np.array([3.0, 4.0])).value == pytest.approx(5.0, rel=1e-14)
    assert norm(np.full(4, 1e-200)).value == pytest.approx(2e-200, rel=1e-14)
    assert norm(np.full(4, 5e-324)).value >= 1e-323
    assert norm(np.full(4, 1e200)).value == pytest.approx(2e200, rel=1e-14)
    with pytest.raises(ValueError, match="NaN"):
        norm(np.array([np.nan]))


def test_a_long_sum_is_rounded_up() -> None:
    """2^20 squares whose nearest-rounded sum falls below the truth."""
    vector = np.full(2**20 + 1, 1.0 + 2.0**-30)
    exact = len(vector) * Fraction(1.0 + 2.0**-30) ** 2
    assert Fraction(norm(vector).value) ** 2 >= exact


def test_norm_of_entries_of_very_different_size() -> None:
    """Tiny entries beside huge ones are not lost: the sum of squares is exact."""
    vector = np.array([1e300, 1e-300, 5e-324])
    exact = sum(Fraction(float(v)) ** 2 for v in vector)
    assert Fraction(norm(vector).value) ** 2 >= exact


@pytest.mark.parametrize("count", [64, 100, 784, 1024])
def test_norm_of_a_short_array_is_correctly_rounded(count: int) -> None:
    assert norm(np.ones(count)).value == Upper(float(count)).sqrt().value
