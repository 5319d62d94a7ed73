"""Facts: reduction on construction, and the algebra of bounds."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.facts import (
    Bound,
    CotangentFacts,
    PairHull,
    ValueFacts,
    Witness,
    no_bound,
    product_of,
    sum_of,
    tightest,
)
from lipcert.interval import Interval
from lipcert.upper import INFINITE, Upper

positive = st.floats(0.0, 1e100)
ABSENT = no_bound("test.rule", "nothing is known", "find out")


def bound(value: float, rule: str = "test.rule") -> Bound:
    return Bound(Upper(value), rule)


def test_an_absent_bound_must_say_why() -> None:
    with pytest.raises(ValueError, match="state its reason"):
        Bound(INFINITE, "test.rule")
    assert not ABSENT.is_finite


def test_a_witness_stays_with_its_rule_and_value() -> None:
    class Some(Witness):
        pass

    known = Bound(Upper(2.0), "test.rule", witness=Some())
    assert known == bound(2.0)
    assert hash(known) == hash(bound(2.0))
    assert tightest(bound(3.0), known, bound(2.0)).witness is known.witness
    assert tightest(known, bound(1.0)).witness is None
    for changed in (
        known.scaled(Upper(3.0)),
        product_of("test.product", known),
        sum_of("test.sum", known),
    ):
        assert changed.witness is None


@given(st.lists(positive, min_size=1, max_size=5))
def test_products_and_sums_are_never_below_the_exact_ones(values: list[float]) -> None:
    product, total = Fraction(1), Fraction(0)
    for value in values:
        product, total = product * Fraction(value), total + Fraction(value)
    claimed = product_of("test.product", *map(bound, values))
    assert not claimed.is_finite or Fraction(claimed.value.value) >= product
    assert Fraction(sum_of("test.sum", *map(bound, values)).value.value) >= total


def test_an_absent_factor_or_term_explains_the_result() -> None:
    for combined in (
        product_of("test", bound(0.0), ABSENT),
        sum_of("test", bound(1.0), ABSENT),
        ABSENT.scaled(Upper(2.0)),
    ):
        assert combined is ABSENT


def test_results_beyond_float64_are_absent_with_a_reason() -> None:
    huge = bound(1e300)
    for combined in (product_of("test", huge, huge), sum_of("test", *[bound(1.7e308)] * 2)):
        assert not combined.is_finite
        assert "float64" in combined.reason
    assert not huge.scaled(Upper(1e300)).is_finite
    with pytest.raises(ValueError, match="unknown factor"):
        huge.scaled(INFINITE)


def test_the_tightest_bound_wins_and_the_first_wins_a_tie() -> None:
    assert tightest(bound(2.0), bound(1.0, "low"), ABSENT).rule == "low"
    assert tightest(bound(1.0, "first"), bound(1.0, "second")).rule == "first"


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 5)), min_size=1, max_size=4),
    st.floats(0.1, 20.0),
)
def test_reduction_keeps_every_admissible_value(ends: list[tuple[float, float]], r: float) -> None:
    low = np.array([lo for lo, _ in ends])
    high = np.array([lo + width for lo, width in ends])
    nearest = np.clip(0.0, low, high)
    radius = max(r, float(np.linalg.norm(nearest)) * (1 + 1e-9))
    facts = ValueFacts.of((len(ends),), bound(radius), Interval(low, high))
    for mix in np.linspace(0.0, 1.0, 5):
        corner = nearest + mix * (np.where(np.abs(high) > np.abs(low), high, low) - nearest)
        if np.linalg.norm(corner) <= radius:
            assert np.all(corner >= facts.box.lo)
            assert np.all(corner <= facts.box.hi)
            assert np.linalg.norm(corner) <= facts.norm.value.value * (1 + 1e-12)
    assert facts.norm.value.value <= radius
    assert facts.max_abs.value <= radius


def test_the_norm_of_a_small_box_replaces_a_larger_ball() -> None:
    facts = ValueFacts.of((4,), bound(9.0), Interval(np.zeros(4), np.ones(4)))
    assert facts.norm.rule == "value.norm_of_box"
    assert facts.norm.value.value == pytest.approx(2.0)
    assert facts.is_nonnegative
    assert facts.size == 4


def test_meeting_facts_keep_the_better_of_both() -> None:
    ball = ValueFacts.of((2,), bound(1.0))
    box = ValueFacts.of((2,), bound(3.0), Interval(np.full(2, -0.1), np.full(2, 2.0)))
    both = ball.meet(box)
    assert both.norm.value.value == 1.0
    assert both.box.lo.tolist() == [-0.1, -0.1]
    assert both.box.hi.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="do not meet"):
        ball.meet(ValueFacts.of((3,), bound(1.0)))


def test_unknown_values_have_an_infinite_box() -> None:
    facts = ValueFacts.of((2, 3), ABSENT)
    assert facts.max_abs.value == math.inf
    assert not facts.is_nonnegative


def test_cotangents_add_and_lose_their_hull() -> None:
    one = CotangentFacts(bound(1.0), PairHull(3, Upper(1.0)))
    assert one.plus(one) == CotangentFacts(Bound(Upper(2.0), "cotangent.fan_out"))
    assert one.through(bound(0.5)).hull is None
    assert one.through(bound(0.5)).norm.value.value == 0.5
    assert one.plus(CotangentFacts(ABSENT)).norm is ABSENT
