"""Document: what a report says, whatever it is written in.

The report of a verb makes these plain records, which `text`, `markdown` and `html` write. Strings
are those of models, traces and users: the writers make them safe. A cell that is a number is an
upper bound, and a writer never shows it smaller than it is. What is found of many nodes with one
remedy is one `Line` with a count: for people only; JSON and the formats of CI list every finding.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import Refusal
from lipcert.text.numbers import at_most
from lipcert.text.safe import safe

if TYPE_CHECKING:
    from lipcert.report.charts import LineChart

_NAMES: Final = 3
_ORDER: Final = tuple(Level)
_MOST_NUMBERS: Final = 300
_SILENT: Final = frozenset({"–", "0", ""})


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


class Tone(Enum):
    """How something is to be taken; the value is its class in the style sheet."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    PLAIN = "plain"
    SUBJECT = "subject"
    """the name of what the report is about"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A sentence that answers what was asked."""

    text: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Statement:
    """A topic with its sentence. status: a word with its tone, where somebody looked at it."""

    topic: str
    text: str
    status: str = ""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Statements:
    """Statements of one kind. tone: of their sentences."""

    rows: tuple[Statement, ...]
    tone: Tone = Tone.PLAIN

    @classmethod
    def of(cls, rows: Iterable[tuple[str, str]], tone: Tone = Tone.PLAIN) -> Statements:
        """Pairs of a topic and a sentence."""
        return cls(tuple(Statement(*row) for row in rows), tone)

    @property
    def has_status(self) -> bool:
        """Whether anybody looked at any of them."""
        return any(row.status for row in self.rows)


@dataclass(frozen=True, slots=True)
class Listing:
    """Sentences. hidden: how many more there are."""

    rows: tuple[str, ...]
    hidden: int = 0

    def first(self, most: int | None) -> Listing:
        """Without what comes after so many."""
        return Listing(self.rows[:most], len(self.rows) - len(self.rows[:most]))


@dataclass(frozen=True, slots=True)
class Findings:
    """Lines about what was found, labelled by level and code, or by code alone."""

    rows: tuple[Line, ...]
    hidden: int = 0

    def first(self, most: int | None) -> Findings:
        """Without what comes after so many."""
        return Findings(self.rows[:most], len(self.rows) - len(self.rows[:most]))


Cell: TypeAlias = str | float | tuple[float | None, ...] | None
"""words, or bounds (None: no bound)"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of names (left) or numbers (right).

    In text, which has to fit: a name is shortened to `most`, and further to `least` (0: never);
    the column with the highest rank leaves first (0: it stays).
    optional: it is left out where it says nothing.
    """

    title: str
    is_number: bool = False
    least: int = 0
    most: int = 36
    rank: int = 0
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells. hidden: how many more there are."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a ranking. share: the length of its bar in [0, 1]; remark: beside the bar."""

    name: str
    number: str
    share: float
    kind: str = ""
    remark: str = ""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Ranking:
    """Numbers to be compared at a glance."""

    rows: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its caption, a description for who does not see it, and the numbers it shows.

    key: unique on a page. titles: of the columns of numbers; those of names begin with a blank.
    """

    key: str
    title: str
    caption: str
    chart: LineChart
    description: str
    titles: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]

    @property
    def table(self) -> Table:
        """The numbers that the chart shows."""
        columns = [Column(title.lstrip(), not title.startswith(" ")) for title in self.titles]
        return table(columns, self.rows[:_MOST_NUMBERS], len(self.rows[_MOST_NUMBERS:]))


@dataclass(frozen=True, slots=True)
class Charts:
    """Figures, which only a page can show."""

    rows: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """Lines for a shell, each with the comment above it ("": none)."""

    rows: tuple[tuple[str, str], ...]


Part: TypeAlias = Statements | Listing | Findings | Table | Ranking | Charts | Commands


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a title (the first may have none)."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """What a verb says. answers: the first lines. facts: what it is about. word: the answer in one
    word, for pages."""

    title: str
    answers: tuple[Answer, ...]
    facts: Statements = Statements(())
    sections: tuple[Section, ...] = ()
    word: str = ""

    @property
    def tone(self) -> Tone:
        """That of the first answer which is not the name of the subject."""
        tones = (answer.tone for answer in self.answers)
        return next((tone for tone in tones if tone is not Tone.SUBJECT), Tone.PLAIN)

    def charted(self, figures: Iterable[Figure]) -> Document:
        """With figures behind its first section."""
        charts = sections_of(("Charts", Charts(tuple(figures))))
        return replace(self, sections=(*self.sections[:1], *charts, *self.sections[1:]))


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], hidden: int = 0) -> Table:
    """A table without the optional columns that say nothing."""
    kept = [
        index
        for index, column in enumerate(columns)
        if not column.optional or any(row[index] not in _SILENT for row in rows)
    ]
    return Table(
        tuple(columns[index] for index in kept),
        tuple(tuple(row[index] for index in kept) for row in rows),
        hidden,
    )


def csv_text(titles: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> str:
    """One table for spreadsheets and scripts, by RFC 4180; integers are written as words.

    Numbers are in full precision, and what has no bound or is infinite is an empty field. Names are
    made safe, and one that a spreadsheet would take for a formula starts with an apostrophe.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([_field(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _field(cell: str | float | None) -> str:
    if isinstance(cell, str):
        text = safe(cell)
        return f"'{text}" if text.lstrip()[:1] in {"=", "+", "-", "@"} else text
    return "" if cell is None or not math.isfinite(cell) else repr(float(cell))


def sections_of(*sections: tuple[str, *tuple[Part, ...]]) -> tuple[Section, ...]:
    """Those of (title, part, …) that say anything, and of each the parts that do."""
    shown = [
        Section(title, tuple(part for part in parts if part.rows)) for title, *parts in sections
    ]
    return tuple(section for section in shown if section.parts)


def explained(code: str) -> Commands:
    """Where more is said of the first of some findings."""
    return Commands((("more about the first", f"lipcert explain {code}"),))


def cell_text(cell: Cell, digits: int) -> str:
    """The words of a cell; bounds are rounded up to so many digits."""
    match cell:
        case str():
            return cell
        case tuple():
            return ", ".join(at_most(bound, digits) for bound in cell)
    return at_most(cell, digits)
