"""Histograms of observations relative to a bound, all together or one strip per group.

What enters: counts by bins that are a fraction of an octave wide; bin 0 begins at the bound. What
leaves: drawings with the bound as a line. Few observations far below the bound would take most of
the room: `lowest_bin` says where to begin, and everything below stands in the first bin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from lipcert.report.charts.scale import LEGEND_HEIGHT, left_axis, scale_from_zero, superscript
from lipcert.report.charts.svg import WIDTH, Drawing, Role, element, fitted, line, text, text_width

_HEIGHT: Final = 170.0
_BELOW: Final = 40.0
_NAMES: Final = 160.0
_ROW: Final = 18.0
_LEAST_OVER: Final = 4.0
_LOWEST_OCTAVE: Final = -10
_HIGHEST_WRITTEN_OUT: Final = 16
_TAIL: Final = 0.005
_TITLE: Final = "observed gradient norm / bound (log scale)"

Counts = Mapping[int, int]


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
        """Where a bin begins."""
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
    top = bottom - _HEIGHT
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
    return Drawing(bottom + _BELOW, "".join(parts))


def strip_chart(strips: Sequence[Strip], bins_per_octave: int, lowest: int) -> Drawing:
    """One row per group; the more observations a cell holds, the stronger it is drawn."""
    rows = [replace(strip, counts=_gathered(strip.counts, lowest)) for strip in strips]
    left = min(max(text_width(strip.name) for strip in rows), _NAMES) + 8.0
    right = WIDTH - max(text_width(strip.note) for strip in rows) - 8.0
    bins = _bins(
        [number for strip in rows for number in strip.counts], bins_per_octave, left, right
    )
    top = 16.0
    parts = []
    for index, strip in enumerate(rows):
        y = top + _ROW * index
        parts += [
            text(fitted(strip.name, _NAMES), left - 8.0, y + 13.0, "end"),
            text(strip.note, WIDTH, y + 13.0, "end", "number"),
            *_cells(strip, bins, y + 2.0),
        ]
    bottom = top + _ROW * len(rows) + 2.0
    parts.append(_axis(bins, top, bottom))
    return Drawing(bottom + _BELOW, "".join(parts))


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
                "height": _ROW - 4.0,
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
    return LEGEND_HEIGHT + 16.0 + _HEIGHT


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
