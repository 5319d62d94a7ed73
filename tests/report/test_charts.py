"""Charts are well-formed, scales keep numbers in order, and nothing leaves the page."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.report.charts import HEIGHT, WIDTH, LineChart, scale_from_zero, scale_of
from lipcert.report.html import svg

SVG = "{http://www.w3.org/2000/svg}"
COLUMNS = 300.0
names = st.text(max_size=60)
norms = st.one_of(
    st.floats(min_value=1e-9, max_value=1e9), st.floats(min_value=0.0, allow_infinity=False)
)
points = st.lists(st.tuples(st.floats(1.0, 1e6), norms), min_size=1, max_size=9, unique=True)
sizes = st.floats(min_value=1e-12, max_value=1e12)
data = st.lists(sizes, min_size=1, max_size=12)


def parsed(chart: LineChart) -> ElementTree.Element:
    return ElementTree.fromstring(svg(chart, "key", "a title", "a description"))


@given(points, points, names)
def test_lines_are_well_formed_and_inside(
    found: list[tuple[float, float]], seen: list[tuple[float, float]], name: str
) -> None:
    chart = LineChart(
        *("steps", "ε", name, tuple(sorted(found)), name, tuple(sorted(seen))),
        tip=(*found[0], name[:12]),
    )
    for item in parsed(chart).iter():
        for attribute in ("x", "x1", "x2", "cx"):
            assert -0.6 <= float(item.get(attribute, 0.0)) <= WIDTH + 0.6
        for attribute in ("y", "y1", "y2", "cy"):
            assert -0.6 <= float(item.get(attribute, 0.0)) <= HEIGHT + 0.6


def test_bounds_and_observations_lie_at_their_numbers() -> None:
    bound = ((1.0, 4.0), (2.0, 2.0))
    drawn = parsed(LineChart("place", "norm", "bound", bound, "observed", ((2.0, 2.0),)))
    (curve,) = drawn.iter(f"{SVG}polyline")
    places = [tuple(map(float, place.split(","))) for place in curve.get("points", "").split()]
    (_, first), (right, second) = places
    assert first < second
    dot = list(drawn.iter(f"{SVG}circle"))[-1]
    assert (float(dot.get("cx", "nan")), float(dot.get("cy", "nan"))) == (right, second)


def test_a_logarithmic_axis_says_so() -> None:
    for largest, is_log in ((2.0, False), (1e6, True)):
        chart = LineChart("place", "norm", "bound", ((1.0, 1.0), (2.0, largest)))
        texts = [item.text for item in parsed(chart).iter(f"{SVG}text")]
        assert ("norm (log scale)" in texts) is is_log


def test_texts_are_escaped() -> None:
    chart = LineChart("<&>", "&amp;", "\"'<b>\u202e", ((1.0, 1.0),))
    texts = [item.text for item in parsed(chart).iter(f"{SVG}text")]
    assert {"<&>", "&amp;", "\"'<b>\\u202e"} <= set(texts)


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


@given(data)
def test_ticks_are_on_the_axis_and_few(values: list[float]) -> None:
    for scale in (scale_of(values, 0.0, COLUMNS), scale_from_zero(values, 0.0, COLUMNS)):
        ticks = scale.ticks()
        assert 1 <= len(set(ticks)) == len(ticks) <= 14
        assert all(-0.5 <= scale.at(tick) <= COLUMNS + 0.5 for tick in ticks)


def test_axes_from_zero_begin_at_zero_and_end_round() -> None:
    scale = scale_from_zero([4.6], 0.0, 1.0)
    assert (scale.low, scale.high) == (0.0, 5.0)
    assert scale.ticks() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("odd", [1e-200, 1e25, 1e290, 1e305])
def test_one_number_out_of_proportion_leaves_the_others_apart(odd: float) -> None:
    scale = scale_of([3.1, 12.4, 250.0, odd], 0.0, COLUMNS)
    places = [scale.at(value) for value in sorted((3.1, 12.4, 250.0, odd))]
    assert places == sorted(set(places))
    assert max(places) > 0.9 * COLUMNS
    assert 3 <= len(scale.ticks()) <= 7
