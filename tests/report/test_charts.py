"""Charts are well-formed, and what they draw has the length of its number."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.report.charts import (
    Bar,
    BarChart,
    LineChart,
    Series,
    Strip,
    bar_chart,
    histogram_chart,
    line_chart,
    lowest_bin,
    strip_chart,
)
from lipcert.report.svg import WIDTH, Drawing, Role, figure, fitted, text_width

SVG = "{http://www.w3.org/2000/svg}"
names = st.text(max_size=60)
norms = st.one_of(
    st.floats(min_value=1e-9, max_value=1e9), st.floats(min_value=0.0, allow_infinity=False)
)


def parsed(drawing: Drawing) -> ElementTree.Element:
    return ElementTree.fromstring(figure(drawing, "key", "a title", "a description"))


def boxes(drawing: Drawing, role: str) -> list[tuple[float, ...]]:
    return [
        tuple(float(item.get(name, "nan")) for name in ("x", "y", "width", "height"))
        for item in parsed(drawing).iter(f"{SVG}rect")
        if role in item.get("class", "").split()
    ]


def check_inside(drawing: Drawing) -> None:
    for item in parsed(drawing).iter():
        for name in ("x", "x1", "x2", "cx"):
            assert -0.6 <= float(item.get(name, 0.0)) <= WIDTH + 0.6
        for name in ("y", "y1", "y2", "cy"):
            assert -0.6 <= float(item.get(name, 0.0)) <= drawing.height + 0.6


@given(st.lists(st.tuples(names, norms, norms), min_size=1, max_size=8))
def test_bars_are_well_formed_and_inside(rows: list[tuple[str, float, float]]) -> None:
    bars = tuple(Bar(name, norm, name[:9], ((Role.OBSERVED, seen),)) for name, norm, seen in rows)
    check_inside(bar_chart(BarChart("norm", bars, ((Role.BOUND, "bound"),), (1.0, "one"))))


def test_linear_bars_are_as_long_as_their_numbers() -> None:
    bars = tuple(Bar(str(norm), norm, "") for norm in (1.0, 2.0, 4.0))
    found = boxes(bar_chart(BarChart("norm", bars)), "bound")
    assert [box[2] for box in found] == pytest.approx([found[0][2] * k for k in (1, 2, 4)], abs=0.3)


def test_a_missing_bound_has_no_bar() -> None:
    drawing = bar_chart(BarChart("norm", (Bar("a", None, "no bound"), Bar("b", 1.0, "1"))))
    assert len(boxes(drawing, "bound")) == 1
    assert "no bound" in drawing.body


def test_marks_lie_where_their_numbers_are() -> None:
    bars = (Bar("a", 4.0, "", ((Role.OBSERVED, 2.0),)),)
    drawing = bar_chart(BarChart("norm", bars))
    (box,) = boxes(drawing, "bound")
    (dot,) = parsed(drawing).iter(f"{SVG}circle")
    assert float(dot.get("cx", "nan")) == pytest.approx(box[0] + box[2] / 2.0, abs=0.2)


def test_a_logarithmic_axis_says_so() -> None:
    bars = tuple(Bar(str(norm), norm, "") for norm in (1.0, 1e6))
    assert "norm (log scale)" in bar_chart(BarChart("norm", bars)).body
    assert "norm (log scale)" not in bar_chart(BarChart("norm", bars, is_linear=True)).body


points = st.lists(st.tuples(st.floats(1.0, 1e6), norms), min_size=1, max_size=9, unique=True)


@given(points, names)
def test_lines_are_well_formed_and_inside(found: list[tuple[float, float]], name: str) -> None:
    series = (Series(name, Role.BOUND, tuple(sorted(found)), has_marks=True),)
    check_inside(line_chart(LineChart("steps", "ε", series, (*found[0], name[:12]))))


counts = st.dictionaries(st.integers(-80, 16), st.integers(1, 10**6), min_size=1)


@given(counts, st.booleans())
def test_histograms_hold_every_observation(found: dict[int, int], is_over: bool) -> None:
    lowest = lowest_bin(found, 4)
    whole = Strip("all", found, "1", is_over)
    for drawing in (histogram_chart(whole, 4, lowest), strip_chart([whole], 4, lowest)):
        check_inside(drawing)
        columns = boxes(drawing, "observed") + boxes(drawing, "over")
        assert len(columns) == len({max(number, lowest) for number in found})
        over = sum(number >= 0 for number in found) if is_over else 0
        assert len(boxes(drawing, "over")) == over
    assert sum(count for number, count in found.items() if number < lowest) <= max(
        0.005 * sum(found.values()), sum(count for k, count in found.items() if k < -40)
    )


def test_columns_stand_on_their_side_of_the_bound() -> None:
    drawing = histogram_chart(Strip("", {-1: 5, 0: 1}, "", True), 4, -4)
    (limit,) = [item for item in parsed(drawing).iter(f"{SVG}line") if item.get("class") == "limit"]
    bound = float(limit.get("x1", "nan"))
    (inside,), (outside,) = boxes(drawing, "observed"), boxes(drawing, "over")
    assert inside[0] + inside[2] <= bound <= outside[0]


def test_few_violations_are_seen() -> None:
    drawing = histogram_chart(Strip("", {-1: 10**6, 2: 1}, "", True), 4, -4)
    assert boxes(drawing, "over")[0][3] >= 4.0


@given(names, st.floats(40.0, 200.0))
def test_names_are_cut_to_their_room(name: str, room: float) -> None:
    cut = fitted(name, room)
    assert text_width(cut) <= room or len(cut) <= 3


def test_texts_are_escaped() -> None:
    drawing = bar_chart(BarChart("<&>", (Bar("\"'<b>\u202e", 1.0, "&amp;"),)))
    texts = [item.text for item in parsed(drawing).iter(f"{SVG}text")]
    assert "&amp;" in texts
    assert "\"'<b>\\u202e" in texts
