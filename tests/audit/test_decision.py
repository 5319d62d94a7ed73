"""Decisions against exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.measure.measured import Measured, decide, joint, largest_of
from lipcert.measure.precision import Precision

sizes = st.floats(min_value=0.0, max_value=1e30)
precisions = st.sampled_from(list(Precision))
EXACT = Precision.FLOAT64
FILTERS = [precision for precision in Precision if precision is not EXACT]


def measured(*pairs: tuple[float, float]) -> Measured:
    norms, errors = zip(*pairs, strict=True)
    return Measured(np.array(norms), np.array(errors))


@given(sizes, sizes, sizes, precisions)
def test_says_only_what_the_whole_interval_says(
    norm: float, error: float, bound: float, precision: Precision
) -> None:
    found = decide(measured((norm, error)), bound, precision)
    slack = Fraction(precision.margin) * Fraction(norm) + Fraction(precision.floor)
    if found.violating[0]:
        assert precision is EXACT
        assert Fraction(norm) - slack - Fraction(error) > Fraction(bound)
    elif not found.undecided[0]:
        side = -slack if precision is EXACT else slack
        nearly = Fraction(bound) * (1 + Fraction(2) ** -50)
        assert Fraction(norm) + side + Fraction(error) <= nearly


@given(sizes, st.floats(min_value=1e-9, max_value=1e30))
def test_is_not_timid(norm: float, bound: float) -> None:
    """A millionth above its bound is a violation, half a millionth is none."""
    found = decide(measured((norm, norm * 1e-12)), bound)
    if norm > bound * (1.0 + 1e-6):
        assert found.violating[0]
    if norm < bound * (1.0 + 5e-7):
        assert not found.violating[0]
        assert not found.undecided[0]


@pytest.mark.parametrize("precision", FILTERS)
def test_a_filter_settles_what_is_clearly_within_and_nothing_else(precision: Precision) -> None:
    clear = 1.0 - precision.margin - 2.0 * precision.floor
    found = decide(
        measured(
            (0.99 * clear / (1.0 + precision.margin), 0.0), (clear, 0.5), (1.0, 0.0), (9.0, 0.0)
        ),
        1.0,
        precision,
    )
    assert not found.violating.any()
    assert found.undecided.tolist() == [False, True, True, True]


@pytest.mark.parametrize("precision", FILTERS)
def test_a_filter_says_nothing_of_what_may_have_underflowed(precision: Precision) -> None:
    for bound in (0.0, 0.5 * precision.floor):
        assert decide(measured((0.0, 0.0)), bound, precision).undecided.all()
    assert not decide(measured((0.0, 0.0)), 2.0 * precision.floor, precision).undecided.any()


@pytest.mark.parametrize("norm", [math.nan, math.inf])
@pytest.mark.parametrize("error", [0.0, math.inf, math.nan])
@pytest.mark.parametrize("cap", [1.0, math.inf])
def test_what_is_not_finite_violates_in_float64_alone(
    norm: float, error: float, cap: float
) -> None:
    for precision in Precision:
        found = decide(measured((norm, error)), 1.0, precision, cap)
        assert found.violating.tolist() == [precision is EXACT]
        assert found.undecided.tolist() == [precision is not EXACT]


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_an_unknown_error_decides_nothing(precision: Precision, error: float) -> None:
    found = decide(measured((1e-3, error)), 1.0, precision)
    assert (found.violating.tolist(), found.undecided.tolist()) == ([False], [True])


@pytest.mark.parametrize("precision", list(Precision))
def test_a_clip_bounds_the_truth_however_wide_the_interval(precision: Precision) -> None:
    found = decide(measured((1.0, 0.5), (0.2, 0.1)), 1.0, precision, cap=1.0)
    assert not found.violating.any()
    assert not found.undecided.any()


def test_what_attains_its_bound_is_within_in_float64() -> None:
    pairs = (1.0, 1e-15), (1.0 + 5e-7, 1e-15), (1.0, 1e-5), (1.0 + 2e-6, 1e-15), (0.0, 1e-150)
    for bound, within in (
        (1.0, [True, True, False, False, True]),
        (0.0, [False, False, False, False, True]),
    ):
        found = decide(measured(*pairs), bound)
        assert (~(found.violating | found.undecided)).tolist() == within
    assert decide(measured(*pairs), 1.0).undecided.tolist() == [False, False, True, False, False]


def test_what_cancels_beside_a_large_norm_is_within_a_bound_of_zero() -> None:
    small = measured((1e-15, 0.0), (1e-15, 0.0), (1e-12, 0.0))
    large = measured((1.0, 0.0), (0.0, 0.0), (math.inf, 0.0))
    found = decide(small, 0.0, largest=largest_of([small, large]))
    assert found.violating.tolist() == [False, True, True]
    assert not found.undecided.any()
    assert largest_of([]) == 0.0


@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=5))
def test_a_joint_norm_covers_every_norm_of_the_parts(parts: list[tuple[float, float]]) -> None:
    found = joint([measured(part) for part in parts])
    low = sum(max(Fraction(0), Fraction(n) - Fraction(e)) ** 2 for n, e in parts)
    high = sum((Fraction(n) + Fraction(e)) ** 2 for n, e in parts)
    upper = Fraction(float(found.norm[0])) + Fraction(float(found.error[0]))
    lower = Fraction(float(found.norm[0])) - Fraction(float(found.error[0]))
    assert upper**2 >= high
    assert lower <= 0 or lower**2 <= low
