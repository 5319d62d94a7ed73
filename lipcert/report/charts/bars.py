"""Bars: one quantity of many things as horizontal bars, with marks laid over them.

What enters: bars in the order of the page. What leaves: a drawing with names left, numbers right
and an axis below; logarithmic where the numbers differ much, and the axis says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, final

from lipcert.report.charts.scale import (
    LEGEND_HEIGHT,
    Scale,
    bottom_axis,
    legend,
    scale_from_zero,
    scale_of,
)
from lipcert.report.charts.svg import (
    WIDTH,
    Drawing,
    Role,
    element,
    fitted,
    line,
    mark,
    text,
    text_width,
)

_ROW: Final = 22.0
_THICK: Final = 12.0
_NAMES: Final = 160.0
_BELOW: Final = 38.0


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
    left = min(max((text_width(bar.name) for bar in chart.bars), default=0.0), _NAMES) + 8.0
    right = WIDTH - max((text_width(bar.note) for bar in chart.bars), default=0.0) - 8.0
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
