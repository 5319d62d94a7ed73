"""Sensitivities and multipliers against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.claims import (
    effective_multiplier,
    sensitivity_up,
    total_sensitivity,
)

_SIZES = st.floats(1e-30, 1e30)


@given(_SIZES, st.integers(1, 10**9), st.sampled_from(["add-remove", "zero-out", "replace-one"]))
def test_sensitivities(bound: float, divisor: int, relation: str) -> None:
    factor = 2 if relation == "replace-one" else 1
    exact = factor * Fraction(bound)
    assert Fraction(sensitivity_up(bound, None, relation)) == exact
    mean = sensitivity_up(bound, divisor, relation)
    assert Fraction(math.nextafter(mean, 0.0)) < exact / divisor <= Fraction(mean)


def test_refusals() -> None:
    with pytest.raises(KeyError):
        sensitivity_up(1.0, None, "neighbours")
    assert sensitivity_up(math.inf, 5, "replace-one") == math.inf


@given(st.lists(st.tuples(_SIZES, _SIZES), min_size=1, max_size=5))
def test_multiplier_is_the_largest_lower_bound(groups: list[tuple[float, float]]) -> None:
    found = Fraction(effective_multiplier(*zip(*groups, strict=True)))
    exact = 1 / sum((Fraction(delta) / Fraction(noise)) ** 2 for delta, noise in groups)
    assert found**2 <= exact < Fraction(math.nextafter(float(found), math.inf)) ** 2


@given(st.lists(_SIZES, max_size=5))
def test_total(deltas: list[float]) -> None:
    total = Fraction(total_sensitivity(deltas))
    assert total**2 >= sum(Fraction(delta) ** 2 for delta in deltas)


def test_hidden_and_unhidden() -> None:
    assert effective_multiplier([1.0, 0.0], [1.0, 0.0]) == 1.0
    assert effective_multiplier([1.0, 1.0], [1.0, 0.0]) == 0.0
    assert effective_multiplier([0.0], [0.0]) == math.inf
    assert effective_multiplier([math.inf], [1.0]) == 0.0
    assert total_sensitivity([1.0, math.inf]) == math.inf
    with pytest.raises(ValueError, match="negative"):
        effective_multiplier([1.0], [-1.0])
    with pytest.raises(ValueError, match="negative"):
        effective_multiplier([math.nan], [1.0])
