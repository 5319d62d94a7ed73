"""Marks: how one number of a kind is drawn; kinds differ in shape and not only in colour."""

from __future__ import annotations

from enum import Enum
from typing import final

from lipcert.report.charts.svg import element


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
