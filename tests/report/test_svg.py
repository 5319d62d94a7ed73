"""Scales put numbers in order, ticks are round, and neither leaves the axis."""

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.report.charts import ratio_label
from lipcert.report.svg import number_label, scale_from_zero, scale_of, text_width, ticks_that_fit

COLUMNS = 300.0
sizes = st.floats(min_value=1e-12, max_value=1e12)
data = st.lists(sizes, min_size=1, max_size=12)


@given(data)
def test_numbers_keep_their_order_and_stay_on_the_axis(values: list[float]) -> None:
    scale = scale_of(values, 10.0, 110.0)
    places = [scale.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(10.0 - 1e-9 <= place <= 110.0 + 1e-9 for place in places)
    assert max(places) > 10.0 + 0.35 * 100.0


@given(data)
def test_equal_ratios_are_equal_distances_on_a_logarithmic_scale(values: list[float]) -> None:
    scale = scale_of([*values, max(values) / 1e4], 0.0, 100.0)
    assert scale.is_log
    steps = [scale.low * (scale.high / scale.low) ** (k / 8) for k in range(9)]
    for k, value in enumerate(steps):
        assert scale.at(value) == pytest.approx(100.0 * k / 8, abs=1e-6)


@given(data, st.integers(2, 8))
def test_ticks_are_on_the_axis_and_few(values: list[float], count: int) -> None:
    for scale in (scale_of(values, 0.0, 300.0), scale_from_zero(values, 0.0, 300.0)):
        ticks = scale.ticks(count)
        assert 1 <= len(ticks) <= 2 * count + 4
        assert len({tick.label for tick in ticks}) == len(ticks)
        for tick in ticks:
            assert -0.5 <= scale.at(tick.value) <= 300.5


@given(data, st.floats(60.0, 400.0))
def test_labels_below_an_axis_do_not_touch(values: list[float], stop: float) -> None:
    scale = scale_of(values, 0.0, stop)
    ticks = ticks_that_fit(scale, 6)
    ends = [(scale.at(tick.value) - text_width(tick.label) / 2, tick) for tick in ticks]
    for (left, tick), (right, _) in itertools.pairwise(ends):
        assert left + text_width(tick.label) < right + 1e-9 or len(ticks) == 2


def test_axes_from_zero_begin_at_zero_and_end_round() -> None:
    scale = scale_from_zero([4.6], 0.0, 1.0)
    assert (scale.low, scale.high) == (0.0, 5.0)
    assert [tick.label for tick in scale.ticks(5)] == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (0.0, "0"),
        (0.25, "0.25"),
        (1500.0, "1,500"),
        (1e5, "10⁵"),
        (2e-7, "2·10⁻⁷"),
        (0.001, "0.001"),
    ],
)
def test_numbers_are_short(value: float, label: str) -> None:
    assert number_label(value) == label


@given(st.integers(-12, 12), st.sampled_from([1.0, 2.0, 5.0]))
def test_labels_are_what_they_stand_for(power: int, mantissa: float) -> None:
    value = mantissa * 10.0**power
    found = re.fullmatch(r"(?:(\d+)·)?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", number_label(value))
    if found is None:
        number = float(number_label(value).replace(",", ""))
    else:
        exponent = found[2].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
        number = float(found[1] or 1) * 10.0 ** int(exponent)
    assert math.isclose(number, value)


@pytest.mark.parametrize("largest", [1e25, 1e290, 1e305])
def test_one_enormous_number_leaves_the_others_apart(largest: float) -> None:
    """Few ticks, all of them powers of ten, and a bar for every number that is none at the end."""
    scale = scale_of([3.1, 12.4, 250.0, largest], 0.0, COLUMNS)
    places = [scale.at(value) for value in (3.1, 12.4, 250.0, largest)]
    assert scale.low <= 3.1
    assert places == sorted(set(places))
    assert places[-1] > 0.9 * COLUMNS
    ticks = ticks_that_fit(scale, 6)
    assert 3 <= len(ticks) <= 7
    assert all(re.fullmatch("10[⁰¹²³⁴⁵⁶⁷⁸⁹]+", tick.label) for tick in ticks)


def test_one_number_next_to_nothing_leaves_the_others_apart() -> None:
    scale = scale_of([1e-200, 3.1, 12.4, 250.0], 0.0, COLUMNS)
    assert scale.at(12.4) - scale.at(3.1) > 0.02 * COLUMNS


def test_a_logarithmic_axis_of_moderate_numbers_names_them_plainly() -> None:
    assert [tick.label for tick in scale_of([1.0, 1000.0], 0.0, COLUMNS).ticks(6)] == [
        *("1", "10", "100", "1,000")
    ]


def test_ratios_are_short() -> None:
    assert [ratio_label(octave) for octave in (-3, 0, 4, 83)] == ["1/8", "1", "16", "2⁸³"]
