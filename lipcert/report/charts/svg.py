"""SVG: elements as text, the marks of numbers, and the frame that explains a chart in words.

What enters: names, attributes, and texts that may come from a model. What leaves: well-formed SVG.
Invariants: every text passes through `text` or the title of a figure, where it is made safe and
escaped; kinds of numbers differ in shape and not only in colour; equal charts give equal bytes.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
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
    """A straight line."""
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
