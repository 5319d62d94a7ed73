"""Lines: curves through points over two axes.

What enters: series of points, increasing in x. What leaves: a drawing; the vertical axis is
logarithmic where the numbers differ much, and its title says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

from lipcert.report.charts.scale import (
    LEGEND_HEIGHT,
    Scale,
    bottom_axis,
    left_axis,
    legend,
    scale_from_zero,
    scale_of,
)
from lipcert.report.charts.svg import WIDTH, Drawing, Role, element, mark, text, text_width

_HEIGHT: Final = 190.0
_BELOW: Final = 38.0
_MOST_MARKS: Final = 40  # on a line
_MOST_POINTS: Final = 300  # without one: of more, every second, third, … is drawn

Points = tuple[tuple[float, float], ...]


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
