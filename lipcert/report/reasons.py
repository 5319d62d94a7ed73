"""Why a bound is so large: the lines behind it, for people and tools."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from lipcert.analysis.reasons import Reason, graph_of, largest_factors
from lipcert.report.document import (
    Answer,
    Column,
    Document,
    Listing,
    Tone,
    sections_of,
    table,
)
from lipcert.report.json import JsonObject
from lipcert.report.numbers import at_most

_FACTORS: Final = (
    Column("factor", True),
    Column("of"),
    Column("rule"),
    Column("smaller by", rank=1),
)
_LINES: Final = (Column("bound", True), Column("of", most=44), Column("follows", most=70, rank=1),
                 Column("rule", rank=2))  # fmt: skip
_MOST: Final = 40
_DEEPEST: Final = 12


def reasons_document(path: str, roots: tuple[Reason, ...], *, show_all: bool) -> Document:
    """What `lipcert explain MODEL --bound NAME` says to people."""
    answers = [Answer(path, Tone.SUBJECT)]
    parts: list[tuple[str, object]] = []
    for root in roots:
        name = (
            root.subject if root.what == "Lipschitz constant" else f"{root.what} of {root.subject}"
        )
        said = f"at most {at_most(root.bound)}" if math.isfinite(root.bound) else "not bounded"
        answers.append(Answer(f"The {name} is {said}: {root.text}.", Tone.PLAIN))
        factors = [
            (item.factor, f"{item.what} of {item.subject}", item.rule, item.remedy)
            for item in largest_factors(root)
        ]
        rows = list(_rows(root, 0, set()))
        shown = rows if show_all else rows[:_MOST]
        parts.append(("Largest factors", table(_FACTORS, factors)))
        parts.append(("How it follows", table(_LINES, shown, len(rows) - len(shown))))
    more = "`lipcert explain RULE` prints the contract and the proof of a rule."
    return Document(
        "LipCert bound",
        tuple(answers),
        sections=sections_of(*parts, ("", Listing((more,)))),  # type: ignore[arg-type]
    )


def _rows(
    reason: Reason, depth: int, seen: set[int]
) -> Iterator[tuple[float | str, str, str, str]]:
    """A bound, and below it what it follows from; each once."""
    place = "  " * min(depth, _DEEPEST) + f"{reason.what} of {reason.subject}"
    bound = reason.bound if math.isfinite(reason.bound) else "–"
    if id(reason) in seen:
        yield bound, place, "as above", ""
        return
    seen.add(id(reason))
    yield bound, place, reason.text, reason.rule
    for part in sorted(reason.because, key=lambda item: -item.bound):
        yield from _rows(part, depth + 1, seen)


def reasons_object(path: str, name: str, roots: tuple[Reason, ...]) -> JsonObject:
    """The document `lipcert.bound/1`: reasons that name each other by number, the roots first."""
    return {
        "schema": "lipcert.bound/1",
        "model": path,
        "name": name,
        "roots": list(range(len(roots))),
        "reasons": graph_of(roots),
        "factors": [
            {
                "factor": item.factor,
                "what": item.what,
                "subject": item.subject,
                "rule": item.rule,
                "remedy": item.remedy,
            }
            for item in (largest_factors(roots[0]) if roots else ())
        ],
    }
