"""Reasons: why a bound is so large, as the lines behind it, for readers and tools."""

from collections.abc import Iterator
from typing import Final

from lipcert.analysis.records import BoundReport, ReasonReport
from lipcert.report.document import (
    Answer,
    Column,
    Document,
    Listing,
    Section,
    Tone,
    sections_of,
    table,
)
from lipcert.report.json import DOCUMENT, dump
from lipcert.text.numbers import at_most

SCHEMA: Final = "lipcert.bound/1"
_FACTORS: Final = (
    Column("factor", True),
    Column("of"),
    Column("rule"),
    Column("smaller by", most=70, rank=1),
)
_LINES: Final = (
    Column("bound", True),
    Column("of", most=44),
    Column("follows", most=70, rank=1),
    Column("rule", rank=2),
)
_DEEPEST: Final = 12
_Row = tuple[float | str, str, str, str]


def bound_document(report: BoundReport, most: int | None) -> Document:
    """Return the page of `lipcert explain MODEL --bound NAME`; tables have at most `most` rows."""
    answers = [Answer(report.model, Tone.SUBJECT)]
    sections: list[Section] = []
    for number, root in enumerate(report.reasons[: report.roots]):
        whole = root.what == "Lipschitz constant"
        name = root.what if whole else f"{root.what} of {root.subject}"
        said = "not bounded" if root.bound is None else f"at most {at_most(root.bound)}"
        answers.append(Answer(f"The {name} is {said}: {root.text}.", Tone.PLAIN))
        lines = table(_LINES, list(_rows(report, number)), most)
        sections += sections_of((f"How the {root.what} follows", lines))
    found = [report.reasons[number] for number in report.factors]
    factors = [(item.factor, _subject(item), item.rule, item.remedy) for item in found]
    first = sections_of(("Largest factors", table(_FACTORS, factors)))
    more = "`lipcert explain RULE` prints the contract and the proof of a rule."
    last = sections_of(("", Listing((more,))))
    return Document("LipCert bound", tuple(answers), sections=(*first, *sections, *last))


def _subject(reason: ReasonReport) -> str:
    return f"{reason.what} of {reason.subject}"


def _rows(report: BoundReport, root: int) -> Iterator[_Row]:
    """Yield a bound, and below it what it follows from, the largest first; each once."""
    seen: set[int] = set()
    waiting = [(root, 0)]
    while waiting:
        number, depth = waiting.pop()
        reason = report.reasons[number]
        bound = "–" if reason.bound is None else reason.bound
        place = "  " * min(depth, _DEEPEST) + _subject(reason)
        if number in seen:
            yield bound, place, "as above", ""
            continue
        seen.add(number)
        yield bound, place, reason.text, reason.rule
        parts = sorted(reason.because, key=lambda part: report.reasons[part].bound or 0.0)
        waiting += [(part, depth + 1) for part in parts]


def bound_json(report: BoundReport) -> str:
    """Return `lipcert.bound/1`: reasons that refer to each other by index, the roots first."""
    return dump({"schema": SCHEMA, **DOCUMENT.write(report)})
