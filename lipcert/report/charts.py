"""Charts: small pure functions from numbers to SVG, without scripts and without a library.

- Bars: one quantity of many things, with marks laid over them; names left, numbers right, an axis
  below.
- Lines: curves through points, which increase in x; the title of the vertical axis stands above it.
- Histograms of observations relative to a bound, all together or one strip per group: bins are a
  fraction of an octave wide, bin 0 begins at the bound, which is a line. Few observations far below
  the bound would take most of the room: `lowest_bin` says where to begin, and everything below
  stands in the first bin.

Axes are logarithmic where the numbers differ much, and their titles say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from lipcert.report.svg import (
    LEGEND_HEIGHT,
    WIDTH,
    Drawing,
    Role,
    Scale,
    bottom_axis,
    element,
    fitted,
    left_axis,
    legend,
    line,
    mark,
    scale_from_zero,
    scale_of,
    superscript,
    text,
    text_width,
)

_ROW: Final = 22.0
_THICK: Final = 12.0
_NAMES: Final = 160.0
_BELOW: Final = 38.0
_HEIGHT: Final = 190.0
_MOST_MARKS: Final = 40  # on a line
_MOST_POINTS: Final = 300  # without one: of more, every second, third, … is drawn
_COLUMNS: Final = 170.0
_BELOW_BINS: Final = 40.0
_STRIP: Final = 18.0
_LEAST_OVER: Final = 4.0
_LOWEST_OCTAVE: Final = -10
_HIGHEST_WRITTEN_OUT: Final = 16
_TAIL: Final = 0.005
_TITLE: Final = "observed gradient norm / bound (log scale)"

Points = tuple[tuple[float, float], ...]
Counts = Mapping[int, int]


@final
@dataclass(frozen=True, slots=True)
class Bar:
    """A name, the length of its bar (None: there is none, which `note` explains), and marks."""

    name: str
    value: float | None
    note: str
    marks: tuple[tuple[Role, float], ...] = ()
    role: Role = Role.BOUND


@final
@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars over one axis. reference: a line at this number; is_linear: never logarithmic.

    floor: where a logarithmic axis begins, for numbers that mean nothing below it.
    """

    axis: str
    bars: tuple[Bar, ...]
    legend: tuple[tuple[Role, str], ...] = ()
    reference: tuple[float, str] | None = None
    is_linear: bool = False
    floor: float | None = None


def bar_chart(chart: BarChart) -> Drawing:
    """The drawing of the chart."""
    left, right = _room(chart.bars)
    scale = _scale(chart, left, right)
    top = (LEGEND_HEIGHT if chart.legend else 0.0) + (14.0 if chart.reference else 0.0) + 2.0
    bottom = top + _ROW * len(chart.bars) + 4.0
    title = f"{chart.axis} (log scale)" if scale.is_log else chart.axis
    parts = [legend(chart.legend, 0.0), bottom_axis(scale, top, bottom, title)]
    for index, bar in enumerate(chart.bars):
        parts.append(_row(bar, scale, top + _ROW * (index + 0.5) + 2.0))
    if chart.reference is not None:
        value, name = chart.reference
        x = scale.at(value)
        parts += [line(x, top, x, bottom, "limit"), text(name, x, top - 4.0, "middle", "name")]
    return Drawing(bottom + _BELOW, "".join(parts))


def _room(rows: Sequence[Bar | Strip]) -> tuple[float, float]:
    """Where rows begin and end between their names and their notes."""
    names = max((text_width(row.name) for row in rows), default=0.0)
    return min(names, _NAMES) + 8.0, WIDTH - max(
        (text_width(x.note) for x in rows), default=0.0
    ) - 8


def _row(bar: Bar, scale: Scale, middle: float) -> str:
    parts = [
        text(fitted(bar.name, _NAMES), scale.start - 8.0, middle + 4.0, "end"),
        text(bar.note, WIDTH, middle + 4.0, "end", "number"),
    ]
    if bar.value is not None:
        size = max(scale.at(bar.value) - scale.start, 1.0)
        box = {"x": scale.start, "y": middle - _THICK / 2.0, "width": size, "height": _THICK}
        parts.append(element("rect", {**box, "rx": 1.5, "class": f"bar {bar.role.value}"}))
    parts += [mark(role, scale.at(value), middle) for role, value in bar.marks]
    return "".join(parts)


def _scale(chart: BarChart, start: float, stop: float) -> Scale:
    numbers = _numbers(chart)
    if chart.is_linear:
        return scale_from_zero(numbers, start, stop)
    scale = scale_of(numbers, start, stop)
    return replace(scale, low=chart.floor) if scale.is_log and chart.floor else scale


def _numbers(chart: BarChart) -> list[float]:
    """Everything that has to be on the axis."""
    found = [bar.value for bar in chart.bars if bar.value is not None]
    found += [value for bar in chart.bars for _, value in bar.marks]
    return found if chart.reference is None else [*found, chart.reference[0]]


@final
@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind. has_line: whether they are joined; has_marks: whether each is drawn."""

    name: str
    role: Role
    points: Points
    has_line: bool = True
    has_marks: bool = False


@final
@dataclass(frozen=True, slots=True)
class LineChart:
    """Series over a common pair of axes. tip: a point with a text at it."""

    x_axis: str
    y_axis: str
    series: tuple[Series, ...]
    tip: tuple[float, float, str] | None = None
    x_low: float = 0.0


def line_chart(chart: LineChart) -> Drawing:
    """The drawing of the chart; the title of the vertical axis stands above it."""
    points = [point for series in chart.series for point in series.points]
    if chart.tip is not None:
        points.append(chart.tip[:2])
    named = [(series.role, series.name) for series in chart.series if series.name]
    top = 22.0 + (LEGEND_HEIGHT if named else 0.0)
    bottom = top + _HEIGHT
    vertical = scale_of((y for _, y in points), bottom, top)
    left = max(text_width(tick.label) for tick in vertical.ticks(5)) + 10.0
    across = _horizontal([x for x, _ in points], left, WIDTH - 12.0, chart.x_low)
    title = f"{chart.y_axis} (log scale)" if vertical.is_log else chart.y_axis
    parts = [
        legend(named, 0.0),
        text(title, 0.0, top - 10.0, role="name"),
        left_axis(vertical, left, WIDTH - 12.0),
        bottom_axis(across, top, bottom, chart.x_axis),
    ]
    parts += [_drawn(series, across, vertical) for series in chart.series]
    if chart.tip is not None:
        parts.append(_tip(chart.tip, across, vertical))
    return Drawing(bottom + _BELOW, "".join(parts))


def _horizontal(places: list[float], start: float, stop: float, low: float) -> Scale:
    if low == 0.0:
        return scale_from_zero(places, start, stop)
    high = max(places)
    return Scale(low, high if high > low else low + 1.0, start, stop)


def _drawn(series: Series, across: Scale, vertical: Scale) -> str:
    places = [(across.at(x), vertical.at(y)) for x, y in series.points]
    parts = []
    if series.has_line and places:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(element("polyline", {"points": joined, "class": f"curve {series.role.value}"}))
    if series.has_marks and (len(places) <= _MOST_MARKS or not series.has_line):
        every = math.ceil(len(places) / _MOST_POINTS)
        parts += [mark(series.role, x, y) for x, y in places[:: max(every, 1)]]
    return "".join(parts)


def _tip(tip: tuple[float, float, str], across: Scale, vertical: Scale) -> str:
    """The point, and its text at its left, below it as long as there is room."""
    x, y = across.at(tip[0]), vertical.at(tip[1])
    is_left = x - text_width(tip[2]) > across.start + 12.0
    has_room = y < vertical.start - 24.0
    where = text(
        tip[2],
        x - 6.0 if is_left else x + 8.0,
        y + 18.0 if has_room else y - 10.0,
        "end" if is_left else "start",
        "tip",
    )
    return mark(Role.OBSERVED, x, y) + where


@final
@dataclass(frozen=True, slots=True)
class Strip:
    """The observations of one group. is_over: whether those beyond the bound violate it."""

    name: str
    counts: Counts
    note: str
    is_over: bool = False


@final
@dataclass(frozen=True, slots=True)
class _Bins:
    """Bins `first` … `last` between two coordinates; `count` of them are an octave."""

    first: int
    last: int
    count: int
    start: float
    stop: float

    def edge(self, number: int) -> float:
        """The coordinate at which a bin begins."""
        part = (number - self.first) / (self.last + 1 - self.first)
        return self.start + part * (self.stop - self.start)


def lowest_bin(counts: Counts, bins_per_octave: int) -> int:
    """The first bin to draw: at an octave, with at most one in 200 observations below it."""
    below, whole = 0, sum(counts.values())
    lowest = 0
    for number in sorted(counts):
        lowest = number
        below += counts[number]
        if below > _TAIL * whole:
            break
    octave = min(max(math.floor(lowest / bins_per_octave), _LOWEST_OCTAVE), -1)
    return octave * bins_per_octave


def histogram_chart(whole: Strip, bins_per_octave: int, lowest: int) -> Drawing:
    """Columns over the ratio; violations have their own colour, and are seen even if few."""
    counts = _gathered(whole.counts, lowest)
    bottom = _bottom()
    top = bottom - _COLUMNS
    vertical = scale_from_zero([float(count) for count in counts.values()], bottom, top)
    left = max(text_width(tick.label) for tick in vertical.ticks(5)) + 10.0
    bins = _bins(list(counts), bins_per_octave, left, WIDTH - 12.0)
    parts = [text("observations", 0.0, 12.0, role="name"), left_axis(vertical, left, WIDTH - 12.0)]
    parts += [
        _column(bins, number, vertical.at(float(count)), whole.is_over and number >= 0)
        for number, count in counts.items()
        if count
    ]
    parts += [_axis(bins, top, bottom)]
    return Drawing(bottom + _BELOW_BINS, "".join(parts))


def strip_chart(strips: Sequence[Strip], bins_per_octave: int, lowest: int) -> Drawing:
    """One row per group; the more observations a cell holds, the stronger it is drawn."""
    rows = [replace(strip, counts=_gathered(strip.counts, lowest)) for strip in strips]
    left, right = _room(rows)
    bins = _bins(
        [number for strip in rows for number in strip.counts], bins_per_octave, left, right
    )
    top = 16.0
    parts = []
    for index, strip in enumerate(rows):
        y = top + _STRIP * index
        parts += [
            text(fitted(strip.name, _NAMES), left - 8.0, y + 13.0, "end"),
            text(strip.note, WIDTH, y + 13.0, "end", "number"),
            *_cells(strip, bins, y + 2.0),
        ]
    bottom = top + _STRIP * len(rows) + 2.0
    parts.append(_axis(bins, top, bottom))
    return Drawing(bottom + _BELOW_BINS, "".join(parts))


def _gathered(counts: Counts, lowest: int) -> Counts:
    """Counts in which everything below the lowest bin stands in it."""
    found: dict[int, int] = {}
    for number in sorted(counts):
        found[max(number, lowest)] = found.get(max(number, lowest), 0) + counts[number]
    return found


def _bins(numbers: Sequence[int], count: int, start: float, stop: float) -> _Bins:
    """Whole octaves around all observations and the bound."""
    first = math.floor(min([*numbers, -count]) / count) * count
    last = max([*numbers, 0]) + 1
    return _Bins(first, last, count, start, stop)


def _column(bins: _Bins, number: int, top: float, is_over: bool) -> str:
    x, bottom = bins.edge(number), _bottom()
    height = max(bottom - top, _LEAST_OVER if is_over else 1.0)
    box = {"x": x + 0.5, "y": bottom - height, "width": bins.edge(number + 1) - x - 1.0}
    return element("rect", {**box, "height": height, "class": f"bar {_role(is_over)}"})


def _cells(strip: Strip, bins: _Bins, y: float) -> list[str]:
    most = max(strip.counts.values(), default=1)
    return [
        element(
            "rect",
            {
                "x": bins.edge(number) + 0.5,
                "y": y,
                "width": bins.edge(number + 1) - bins.edge(number) - 1.0,
                "height": _STRIP - 4.0,
                "fill-opacity": f"{0.15 + 0.85 * math.sqrt(count / most):.2f}",
                "class": f"bar {_role(strip.is_over and number >= 0)}",
            },
        )
        for number, count in strip.counts.items()
        if count
    ]


def _role(is_over: bool) -> str:
    return Role.OVER.value if is_over else Role.OBSERVED.value


def _bottom() -> float:
    """Where the columns of a histogram stand."""
    return LEGEND_HEIGHT + 16.0 + _COLUMNS


def _axis(bins: _Bins, top: float, bottom: float) -> str:
    """Ticks at the octaves, and the bound."""
    octaves = range(math.ceil(bins.first / bins.count), bins.last // bins.count + 1)
    widest = max(text_width(ratio_label(octave)) for octave in octaves) + 8.0
    every = max(1, math.ceil(len(octaves) * widest / (bins.stop - bins.start)))
    parts = [line(bins.start, bottom, bins.stop, bottom, "axis")]
    for octave in octaves:
        if octave % every == 0:
            x = bins.edge(octave * bins.count)
            parts += [
                line(x, bottom, x, bottom + 4.0, "axis"),
                text(ratio_label(octave), x, bottom + 18.0, "middle"),
            ]
    bound = bins.edge(0)
    middle = (bins.start + bins.stop) / 2.0
    parts += [
        line(bound, top, bound, bottom, "limit"),
        text("bound", min(bound, WIDTH - 18.0), top - 4.0, "middle", "name"),
        text(_TITLE, middle, bottom + 34.0, "middle", "name"),
    ]
    return "".join(parts)


def ratio_label(octave: int) -> str:
    """A power of two as people write ratios."""
    if octave > _HIGHEST_WRITTEN_OUT:
        return f"2{superscript(octave)}"
    return f"1/{2**-octave}" if octave < 0 else str(2**octave)
