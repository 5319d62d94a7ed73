"""Axes and legends: what every chart has around its data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from lipcert.report.charts.marks import Role, mark
from lipcert.report.charts.scale import Scale, Tick
from lipcert.report.charts.svg import WIDTH, line, text, text_width

LEGEND_HEIGHT: Final = 22.0
_GAP: Final = 14.0
_COUNT: Final = 6


def bottom_axis(scale: Scale, top: float, bottom: float, title: str) -> str:
    """Grid lines, numbers below them, and a title below these: 34 units high."""
    parts = []
    for tick in ticks_that_fit(scale, _COUNT):
        x = scale.at(tick.value)
        parts += [line(x, top, x, bottom, "grid"), text(tick.label, x, bottom + 14, "middle")]
    parts.append(line(scale.start, bottom, scale.stop, bottom, "axis"))
    middle = (scale.start + scale.stop) / 2.0
    half = text_width(title) / 2.0
    parts.append(text(title, min(max(middle, half), WIDTH - half), bottom + 30, "middle", "name"))
    return "".join(parts)


def left_axis(scale: Scale, left: float, right: float) -> str:
    """Grid lines and numbers left of them; the scale runs upwards."""
    parts = []
    for tick in scale.ticks(_COUNT - 1):
        y = scale.at(tick.value)
        parts += [line(left, y, right, y, "grid"), text(tick.label, left - 6, y + 4, "end")]
    return "".join(parts)


def ticks_that_fit(scale: Scale, count: int) -> tuple[Tick, ...]:
    """As many ticks as can be named side by side."""
    while True:
        ticks = scale.ticks(count)
        places = [(scale.at(tick.value), text_width(tick.label) / 2.0) for tick in ticks]
        overlap = any(
            left[0] + left[1] + 6.0 > right[0] - right[1] for left, right in pairwise(places)
        )
        if not overlap or count == 1:
            return ticks if not overlap else ticks[:: max(1, len(ticks) - 1)]
        count -= 1


def legend(entries: Sequence[tuple[Role, str]], left: float) -> str:
    """Marks with their meaning, in one line above the chart."""
    parts = []
    for role, name in entries:
        parts += [mark(role, left + 5.0, 8.0), text(name, left + 14.0, 12.0)]
        left += 14.0 + text_width(name) + _GAP
    return "".join(parts)
