"""Tallies: counting once, in any order, whatever was counted where."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.records import HIGHEST_BIN, LOWEST_BIN
from lipcert.audit.unit_results import UNITS, Tally
from lipcert.measure.measured import Measured, decide

norms = st.lists(st.floats(min_value=0.0, max_value=10.0), max_size=12)


def tally(values: list[float], first: int = 0, bound: float = 2.0, *, sized: bool = False) -> Tally:
    measured = Measured(np.array(values), np.full(len(values), 0.25))
    decision = decide(measured, bound)
    places = first + np.arange(len(values))
    return Tally.of(measured.norm, bound, decision, weights="model", places=places, sized=sized)


@given(norms, norms, norms)
def test_merging_is_counting_together(a: list[float], b: list[float], c: list[float]) -> None:
    first, second = tally(a), tally(b, len(a))
    third = tally(c, len(a) + len(b))
    together = tally(a + b + c)
    assert first.merged(second).merged(third) == together
    assert third.merged(first.merged(second)) == together
    assert second.merged(third).merged(first) == together


@given(norms, norms)
def test_the_median_is_that_of_the_norms(a: list[float], b: list[float]) -> None:
    """Of an even number the lower one, whatever unit it is in; never above the largest."""
    found = tally(a, sized=True).merged(tally(b, len(a), sized=True))
    if not a + b:
        assert found.median is None
        return
    truth = sorted(a + b)[(len(a + b) - 1) // 2]
    assert truth * (1.0 - 0.011) <= found.median <= truth
    assert tally(a).median is None


@given(norms, norms, norms)
def test_bounds_may_differ_from_unit_to_unit(
    a: list[float], b: list[float], c: list[float]
) -> None:
    """What is named is what came closest to its own bound, in whatever order units are merged."""
    parts = [tally(a, 0, 1.0), tally(b, 100, 3.0), tally(c, 200, 4.0)]
    first, second, third = parts
    merged = first.merged(second).merged(third)
    assert merged == third.merged(first.merged(second)) == second.merged(third).merged(first)
    if a or b or c:
        assert merged.share == max(part.share for part in parts if part.examples)
        assert merged.max_observed == pytest.approx(merged.share * merged.bound)


def test_what_has_no_bound_is_named_first() -> None:
    bounded, free = (
        tally([5.0]),
        Tally.of(np.array([0.1]), None, None, weights="model", places=np.array([9])),
    )
    assert bounded.merged(free).bound is None
    assert free.merged(bounded).worst == free.worst


@given(norms)
def test_counts_what_is_there(values: list[float]) -> None:
    found = tally(values)
    assert found.examples == len(values)
    assert sum(found.counts.values()) == len(values)
    assert found.violations == sum(value - 0.25 > 2.0 for value in values)
    if values:
        assert found.max_observed == max(values)
        assert values[found.worst.index] == max(values)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_the_worst(bad: float) -> None:
    found = tally([1.0, bad, 5.0])
    assert found.max_observed == math.inf
    assert found.worst.index == 1
    assert found.violations == 2
    assert UNITS.read(Tally, json.loads(json.dumps(UNITS.write(found))), "tally") == found


def test_the_median_of_what_is_mostly_not_finite_is_infinite() -> None:
    assert tally([math.nan, 1.0, math.inf], sized=True).median == math.inf
    assert tally([math.nan, 1.0, 1.0], sized=True).median == pytest.approx(1.0, rel=0.02)


def test_bins_are_quarters_of_octaves() -> None:
    found = tally([0.0, 1.0, 2.0, 2.0 * 2**0.25 * 1.0001, 1e9, 1e-9], bound=2.0)
    assert found.counts == {LOWEST_BIN: 2, -4: 1, 0: 1, 1: 1, HIGHEST_BIN: 1}
