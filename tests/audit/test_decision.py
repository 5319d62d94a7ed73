"""Decisions against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.decision import decide, decided, joint
from lipcert.audit.measured import Measured

sizes = st.floats(min_value=0.0, max_value=1e30)


def measured(*pairs: tuple[float, float]) -> Measured:
    norms, errors = zip(*pairs, strict=True)
    return Measured(np.array(norms), np.array(errors))


@given(sizes, sizes, sizes, sizes)
def test_says_only_what_the_whole_interval_says(
    norm: float, error: float, drift: float, bound: float
) -> None:
    found = decide(measured((norm, error)), bound, drift)
    width = Fraction(error) + Fraction(drift)
    if found.violating[0]:
        assert Fraction(norm) - width > Fraction(bound)
    elif not found.undecided[0]:
        assert Fraction(norm) + width <= Fraction(bound)


@given(sizes, st.floats(min_value=1e-9, max_value=1e30))
def test_is_not_timid(norm: float, bound: float) -> None:
    found = decide(measured((norm, norm * 1e-12)), bound, bound * 1e-12)
    if norm > bound * (1.0 + 1e-11):
        assert found.violating[0]
    if norm < bound * (1.0 - 1e-11):
        assert not found.violating[0]
        assert not found.undecided[0]


@pytest.mark.parametrize("norm", [math.nan, math.inf])
@pytest.mark.parametrize("drift", [0.0, math.inf])
@pytest.mark.parametrize("cap", [1.0, math.inf])
def test_what_is_not_finite_violates(norm: float, drift: float, cap: float) -> None:
    found = decide(measured((norm, 0.0)), 1.0, drift, cap)
    assert found.violating.tolist() == [True]
    assert found.undecided.tolist() == [False]


def test_an_unknown_error_or_drift_decides_nothing() -> None:
    for error, drift in ((math.inf, 0.0), (0.0, math.inf), (math.nan, 0.0)):
        found = decide(measured((1e-3, error)), 1.0, drift)
        assert (found.violating.tolist(), found.undecided.tolist()) == ([False], [True])


def test_a_clip_bounds_the_truth_however_wide_the_interval() -> None:
    found = decide(measured((1.0, 0.5), (0.2, 0.1)), 1.0, 3.0, cap=1.0)
    assert not found.violating.any()
    assert not found.undecided.any()


@given(sizes, sizes, sizes, st.floats(min_value=1e-100, max_value=1e30))
def test_a_resolution_never_hides_a_violation(
    norm: float, error: float, drift: float, bound: float
) -> None:
    strict, found = (
        decide(measured((norm, error)), bound, drift, resolution=r) for r in (0.0, 1e-9)
    )
    assert found.violating.tolist() == strict.violating.tolist()
    if not found.undecided[0] and not found.violating[0]:
        width = Fraction(error) + Fraction(drift)
        assert Fraction(norm) + width <= Fraction(bound) * (1 + Fraction(1e-9) * 2)


def test_a_resolution_decides_what_attains_its_bound_and_nothing_else() -> None:
    pairs = (1.0, 1e-15), (1.0 + 1e-12, 1e-15), (1.0, 1e-6), (0.0, 1e-150)
    for bound, within in ((1.0, [True, False, False, True]), (0.0, [False, False, False, True])):
        found = decide(measured(*pairs), bound, 0.0, resolution=1e-9)
        assert (~(found.violating | found.undecided)).tolist() == within
    assert decide(measured((0.0, 1e-150)), 0.0, 0.0).undecided.tolist() == [True]


AROUND = st.sampled_from([0.0, 0.5, 1.0 - 1e-12, 1.0, 1.0 + 1e-12, 1.0 + 1e-6, 3.0])
WIDE = st.sampled_from([0.0, 1e-15, 1e-9, 0.3, math.inf])


@given(
    st.lists(st.tuples(AROUND | st.sampled_from([math.nan, math.inf]), WIDE), min_size=1),
    WIDE,
    st.sampled_from([1.0, 1.0 + 1e-9, math.inf]),
    st.sampled_from([0.0, 2.0**-30]),
)
def test_a_drift_that_is_not_asked_for_would_change_nothing(
    pairs: list[tuple[float, float]], drift: float, cap: float, resolution: float
) -> None:
    found = decided(measured(*pairs), 1.0, lambda: drift, cap, resolution)
    assert found.equals(decide(measured(*pairs), 1.0, drift, cap, resolution))


def test_a_drift_is_asked_for_only_where_it_matters() -> None:
    def refused() -> float:
        raise AssertionError

    for pairs, cap in (
        ([(0.5, 0.1), (1.0, 0.0)], 1.0),
        ([(math.nan, 0.0), (math.inf, 0.0)], 1.0),
        ([(0.5, math.inf)], math.inf),
    ):
        decided(measured(*pairs), 1.0, refused, cap)
    for pairs, cap in (([(0.5, 0.1)], math.inf), ([(1.1, 0.0)], 1.0), ([(0.9, 0.0)], 1.5)):
        with pytest.raises(AssertionError):
            decided(measured(*pairs), 1.0, refused, cap)


@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=5))
def test_a_joint_norm_covers_every_norm_of_the_parts(parts: list[tuple[float, float]]) -> None:
    found = joint([measured(part) for part in parts])
    low = sum(max(Fraction(0), Fraction(n) - Fraction(e)) ** 2 for n, e in parts)
    high = sum((Fraction(n) + Fraction(e)) ** 2 for n, e in parts)
    upper = Fraction(float(found.norm[0])) + Fraction(float(found.error[0]))
    lower = Fraction(float(found.norm[0])) - Fraction(float(found.error[0]))
    assert upper**2 >= high
    assert lower <= 0 or lower**2 <= low
