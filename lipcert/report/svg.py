"""SVG: elements as text, the marks of numbers, scales with their axes, and the frame of a chart.

Every text, which may come from a model, passes through `text` or the title of a figure, where it is
made safe and escaped; kinds of numbers differ in shape and not only in colour; equal charts give
equal bytes. A scale is linear or logarithmic; numbers beyond it are drawn at its end.
"""

from __future__ import annotations

import html
import math
import statistics
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final, final

from lipcert.text.safe import safe, shortened

WIDTH: Final = 440.0
"""of every chart, in the units in which text is `_SIZE` high"""
_SIZE: Final = 11.5
_LEAST: Final = 3


@final
@dataclass(frozen=True, slots=True)
class Drawing:
    """The elements of a chart and how high it is; it is `WIDTH` wide."""

    height: float
    body: str


def figure(drawing: Drawing, key: str, title: str, description: str) -> str:
    """The chart as an image with a name and a description; `key` is unique on its page."""
    return element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "class": "chart",
            "role": "img",
            "aria-labelledby": f"{key}-title {key}-desc",
            "viewBox": f"0 0 {_coordinate(WIDTH)} {_coordinate(drawing.height)}",
        },
        element("title", {"id": f"{key}-title"}, escaped(title)),
        element("desc", {"id": f"{key}-desc"}, escaped(description)),
        drawing.body,
    )


def element(name: str, attributes: Mapping[str, str | float], *children: str) -> str:
    """One element; children are elements or escaped text already."""
    words = [f'{key}="{_value(value)}"' for key, value in attributes.items()]
    head = " ".join([name, *words])
    return f"<{head}>{''.join(children)}</{name}>" if children else f"<{head}/>"


def text(content: str, x: float, y: float, anchor: str = "start", role: str = "") -> str:
    """A text on one line; y is its base line."""
    attributes: dict[str, str | float] = {"x": x, "y": y}
    if anchor != "start":
        attributes["text-anchor"] = anchor
    if role:
        attributes["class"] = role
    return element("text", attributes, escaped(content))


def line(x1: float, y1: float, x2: float, y2: float, role: str) -> str:
    """A straight line of that role."""
    return element("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": role})


def escaped(content: str) -> str:
    """A text that means itself in HTML and XML, between tags and between quotes."""
    return html.escape(safe(content), quote=True)


def text_width(content: str) -> float:
    """About how wide a text is drawn, rather too wide."""
    return sum(_advance(character) for character in content) * _SIZE


def fitted(content: str, width: float) -> str:
    """A safe text that is drawn no wider than that, both ends kept."""
    content = safe(content)
    limit = len(content)
    while limit > _LEAST and text_width(shortened(content, limit)) > width:
        limit -= 1
    return shortened(content, limit) if content else ""


def _advance(character: str) -> float:
    if unicodedata.east_asian_width(character) in {"W", "F"}:
        return 1.05
    if character in "MWmw@%—":
        return 0.96
    return 0.4 if character in "iljtfrI.,:;'|! /()[]" else 0.64


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else _coordinate(value)


def _coordinate(value: float) -> str:
    """A tenth of a unit is enough."""
    rounded = f"{value:.1f}"
    return rounded.removesuffix(".0") if rounded != "-0.0" else "0"


@final
class Role(Enum):
    """What a mark stands for; the value is its class in the style sheet."""

    BOUND = "bound"
    OBSERVED = "observed"
    ATTACKED = "attacked"
    OVER = "over"
    """an observation above its bound"""


def mark(role: Role, x: float, y: float) -> str:
    """A dot, a diamond, a square or a cross around a place."""
    match role:
        case Role.OBSERVED:
            return element("circle", {"cx": x, "cy": y, "r": 4.0, "class": role.value})
        case Role.ATTACKED:
            path = f"M{x:.1f} {y - 5:.1f}l5 5-5 5-5-5z"
        case Role.OVER:
            path = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0-8-8 8"
        case Role.BOUND:
            path = f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z"
    return element("path", {"d": path, "class": role.value})


_WIDE: Final = 50.0
_DECADES: Final = 12
_SMALLEST: Final = 1e-290  # what is smaller is drawn as 0, what is larger at the end
_LARGEST: Final = 1e290
_FEW: Final = 1.7  # decades with ticks at 1, 2 and 5
_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LEGEND_HEIGHT: Final = 22.0
_GAP: Final = 14.0
_COUNT: Final = 6


@final
@dataclass(frozen=True, slots=True)
class Tick:
    """A number that an axis names."""

    value: float
    label: str


@final
@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers from `low` to `high` lie between the coordinates `start` and `stop`."""

    low: float
    high: float
    start: float
    stop: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """The coordinate of a number."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            part = (math.log(value) - math.log(self.low)) / self._span()
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.stop - self.start)

    def ticks(self, count: int) -> tuple[Tick, ...]:
        """About `count` round numbers of the scale, all powers of ten where one of them is."""
        values = self._powers(count) if self.is_log else self._multiples(count)
        labels = [number_label(value) for value in values]
        if self.is_log and any(label.startswith("10") and not label.isascii() for label in labels):
            labels = [_power_label(value) for value in values]
        return tuple(map(Tick, values, labels))

    def _span(self) -> float:
        """ln(high/low), of which the quotient may overflow."""
        return math.log(self.high) - math.log(self.low)

    def _multiples(self, count: int) -> list[float]:
        step = _round_up((self.high - self.low) / count)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{k * step:.12g}") for k in range(first, last + 1)]

    def _powers(self, count: int) -> list[float]:
        span = self._span() / math.log(10.0)
        mantissas = (1.0, 2.0, 5.0) if span <= _FEW else (1.0,)
        every = max(1, math.ceil(span / count))
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found = [
            float(f"{mantissa * 10.0**power:.6g}")
            for power in range(first, last + 1)
            if power % every == 0
            for mantissa in mantissas
        ]
        return [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]


def scale_of(values: Iterable[float], start: float, stop: float) -> Scale:
    """From zero up where the numbers are of one size, logarithmic where they are not.

    A logarithmic scale reaches up to the largest number, and down to what is 12 decades below the
    middle one: one number may be out of all proportion, and the others still differ.
    """
    positive = [min(value, _LARGEST) for value in values if value > _SMALLEST]
    if not positive or max(positive) <= _WIDE * min(positive):
        return scale_from_zero(positive, start, stop)
    high = max(positive)
    low = max(min(positive), statistics.median_low(positive) / 10.0**_DECADES)
    return Scale(_round_down(low), _round_up(high), start, stop, is_log=True)


def scale_from_zero(values: Iterable[float], start: float, stop: float) -> Scale:
    """Linear, from zero to a little above the largest number."""
    high = min(max(values, default=0.0), _LARGEST)
    if high <= _SMALLEST:
        return Scale(0.0, 1.0, start, stop)
    step = _round_up(high / 5.0)
    return Scale(0.0, step * math.ceil(high / step - 1e-9), start, stop)


def number_label(value: float) -> str:
    """A round number, short: powers of ten where it is very large or very small."""
    if value == 0.0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:,.6f}".rstrip("0").rstrip(".") if value % 1.0 else f"{value:,.0f}"
    return _power_label(value)


def _power_label(value: float) -> str:
    mantissa, power = f"{value:.3e}".split("e")
    digits = mantissa.rstrip("0").rstrip(".")
    exponent = superscript(int(power))
    return f"10{exponent}" if digits == "1" else f"{digits}·10{exponent}"


def superscript(power: int) -> str:
    """An exponent as it is written behind its base."""
    return str(power).translate(_SUPERSCRIPTS)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0, 20.0) if value <= m * power * (1.0 + 1e-9))


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(m * power for m in (0.5, 1.0, 2.0, 5.0) if m * power <= value * (1.0 + 1e-9))


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
