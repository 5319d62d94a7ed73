"""Repeated findings: what is found of many nodes with one remedy is one line with a count.

What enters: the lines of single findings. What leaves: fewer lines, each where its first finding
stood. For people only: JSON and the formats of CI tell every finding on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, final

from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import Refusal

_NAMES: Final = 3
_ORDER: Final = tuple(Level)


@final
@dataclass(frozen=True, slots=True)
class Line:
    """What a reader sees of a finding. label: its level and code. where: "" for the model."""

    label: tuple[str, ...]
    where: str
    what: str
    remedy: str


def diagnostics_told(diagnostics: Iterable[Diagnostic]) -> tuple[Line, ...]:
    """Diagnostics, errors first; their labels are (level, code)."""
    ordered = sorted(diagnostics, key=lambda found: _ORDER.index(found.level))
    return told_once(
        Line((found.level.value, found.code), found.node, found.message, found.remedy)
        for found in ordered
    )


def refusals_told(refusals: Iterable[Refusal]) -> tuple[Line, ...]:
    """Reasons why a model is refused; their labels are (code,)."""
    return told_once(
        Line((refusal.code,), _place(refusal), refusal.reason, refusal.remedy)
        for refusal in refusals
    )


def told_once(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Lines of one label and remedy as one, which names some places and says how many there are.

    Findings about nothing in particular, or without a remedy, are joined where they are the same.
    """
    alike: dict[tuple[object, ...], list[Line]] = {}
    for line in lines:
        said = (line.label, line.remedy, bool(line.where))
        key = said if line.where and line.remedy else (*said, line.what)
        alike.setdefault(key, []).append(line)
    return tuple(map(_joined, alike.values()))


def _place(refusal: Refusal) -> str:
    return f"node {refusal.node!r} ({refusal.op})" if refusal.node else ""


def _joined(lines: list[Line]) -> Line:
    first, count = lines[0], len(lines)
    if count == 1:
        return first
    if not first.where:
        return replace(first, what=f"{first.what} ({count} times)")
    same = all(line.what == first.what for line in lines)
    what = first.what if same else f"{first.what}; similar for the rest"
    return replace(first, where=_places([line.where for line in lines]), what=what)


def _places(names: list[str]) -> str:
    shown, count = ", ".join(names[:_NAMES]), len(names)
    more = f" and {count - _NAMES} more" if count > _NAMES else ""
    return f"{shown}{more} ({count} in all)"
