"""Document: the content of a report, for every format.

Each verb has a report that makes these plain records, which `text`, `markdown` and `html` write.
Strings come from models, traces and users: the writers make them safe. A cell that is a number is
an upper bound, and a writer never shows it smaller than it is. A finding about many nodes with one
remedy is one `Line` with a count: for readers only; JSON and the formats of CI list every finding.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import Refusal
from lipcert.text.numbers import at_most, bar, first_of
from lipcert.text.safe import safe

if TYPE_CHECKING:
    from lipcert.report.charts import LineChart

_NAMES: Final = 3
_ORDER: Final = tuple(Level)
_MOST_NUMBERS: Final = 300
_MOST_MEMBERS: Final = 12
_MOST_DIGITS: Final = 12
_SILENT: Final = frozenset({"–", "0", ""})


_OF_PARAMETERS: Final = frozenset({"LC023", "LC024", "LC102"})


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a reader must know. kind, place: what it is about ("group", "conv1").

    quantity: a word that distinguishes findings of one code at one place, and never changes.
    """

    code: str
    level: Level
    kind: str
    place: str
    message: str
    remedy: str = ""
    quantity: str = ""

    @classmethod
    def of(cls, found: Diagnostic | Refusal) -> Finding:
        """Return what is found of a node, a parameter or the whole model."""
        if isinstance(found, Refusal):
            kind, node = found.op, found.node
            return cls(found.code, Level.ERROR, kind, node, found.reason, found.remedy)
        kind = "parameter" if found.code in _OF_PARAMETERS else "node"
        kind = kind if found.node else "model"
        return cls(found.code, found.level, kind, found.node, found.message, found.remedy)

    @property
    def where(self) -> str:
        """What it is about, "" for the whole."""
        return f"{self.kind} {self.place}" if self.place else ""


def by_level(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort errors first, and keep the order otherwise."""
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.level)))


def _joined(alike: list[Finding]) -> Finding:
    first, count = alike[0], len(alike)
    if count == 1:
        return first
    if not first.place:
        return replace(first, message=f"{first.message} ({count} times)")
    same = all(found.message == first.message for found in alike)
    message = first.message if same else f"{first.message}; similar for the rest"
    place = f"{first_of([found.place for found in alike], _NAMES)} ({count} in all)"
    return replace(first, place=place, message=message)


class Tone(Enum):
    """How something is meant; the value is its class in the style sheet."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    PLAIN = "plain"
    SUBJECT = "subject"
    """The name of what the report is about."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A sentence that answers the question."""

    text: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Statement:
    """A topic with its sentence. status: a word with its tone, if it was checked."""

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
        """Return pairs of a topic and a sentence as statements."""
        return cls(tuple(Statement(*row) for row in rows), tone)

    @property
    def has_status(self) -> bool:
        """Whether any of them has a status."""
        return any(row.status for row in self.rows)


@dataclass(frozen=True, slots=True)
class Listing:
    """Sentences. hidden: how many more there are."""

    rows: tuple[str, ...]
    hidden: int = 0

    def first(self, most: int | None) -> Listing:
        """Return the first `most` rows, and count the others as hidden."""
        return Listing(self.rows[:most], len(self.rows) - len(self.rows[:most]))


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings for readers. Those of many places with one remedy are one row."""

    rows: tuple[Finding, ...]
    hidden: int = 0

    @classmethod
    def of(
        cls, found: Iterable[Diagnostic | Refusal | Finding], most: int | None = None
    ) -> Findings:
        """Return findings, errors first, and the first `most` of them.

        Findings of one code and remedy are joined. Those without a place or a remedy are joined
        only if they are equal.
        """
        alike: dict[tuple[object, ...], list[Finding]] = {}
        items = (item if isinstance(item, Finding) else Finding.of(item) for item in found)
        for item in by_level(items):
            key = (item.level, item.code, item.remedy, item.kind if item.place else "")
            told = () if item.place and item.remedy else (item.message,)
            alike.setdefault((*key, *told), []).append(item)
        rows = tuple(map(_joined, alike.values()))
        return cls(rows[:most], len(rows) - len(rows[:most]))


Cell: TypeAlias = str | float | tuple[float | None, ...] | None
"""Words, or bounds (None: no bound)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of names (left) or numbers (right).

    For text of limited width, a name is shortened to `most` characters, and if needed to `least`
    (0: never). The column with the highest rank is dropped first (0: never).
    optional: it is left out if it says nothing. cell: what it shows of an item, for `tabled`.
    """

    title: str
    is_number: bool = False
    least: int = 0
    most: int = 36
    rank: int = 0
    optional: bool = False
    cell: Callable[[Any], Cell] = str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells. hidden: how many more there are."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its caption, a description for readers who cannot see it, and its numbers.

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
        """Return the numbers that the chart shows, as a table."""
        columns = [Column(title.lstrip(), not title.startswith(" ")) for title in self.titles]
        return table(columns, self.rows, _MOST_NUMBERS)


@dataclass(frozen=True, slots=True)
class Charts:
    """Figures, which only a page can show."""

    rows: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """Lines for a shell, each with the comment above it ("": none)."""

    rows: tuple[tuple[str, str], ...]


Part: TypeAlias = Statements | Listing | Findings | Table | Charts | Commands


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a title (the first may have none)."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """The report of a verb.

    answers: the first lines. facts: what it is about. word: the answer in one word, for pages.
    """

    title: str
    answers: tuple[Answer, ...]
    facts: Statements = Statements(())
    sections: tuple[Section, ...] = ()
    word: str = ""

    @property
    def tone(self) -> Tone:
        """The tone of the first answer that is not the name of the subject."""
        tones = (answer.tone for answer in self.answers)
        return next((tone for tone in tones if tone is not Tone.SUBJECT), Tone.PLAIN)

    def charted(self, figures: Iterable[Figure]) -> Document:
        """Return the document with figures after its first section."""
        charts = sections_of(("Charts", Charts(tuple(figures))))
        return replace(self, sections=(*self.sections[:1], *charts, *self.sections[1:]))


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], most: int | None = None
) -> Table:
    """Return the first `most` rows, without the optional columns that say nothing."""
    kept = [
        index
        for index, column in enumerate(columns)
        if not column.optional or any(row[index] not in _SILENT for row in rows)
    ]
    return Table(
        tuple(columns[index] for index in kept),
        tuple(tuple(row[index] for index in kept) for row in rows[:most]),
        len(rows) - len(rows[:most]),
    )


def tabled(columns: Sequence[Column], items: Iterable[object], most: int | None = None) -> Table:
    """Return a table with a row for each item, of the first `most` of them."""
    return table(columns, [[column.cell(item) for column in columns] for item in items], most)


def ranking(titles: Sequence[str], rows: Iterable[tuple[*tuple[str, ...], float]]) -> Table:
    """Return names with a number, and a bar for the share in [0, 1] at the end of each row."""
    names = [Column(title, least=12) for title in titles[:-1]]
    columns = [*names, Column(titles[-1], True), Column("bar", rank=1)]
    return table(columns, [(*row[:-1], bar(row[-1])) for row in rows])


def csv_text(titles: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> str:
    """Return one table for spreadsheets and scripts, by RFC 4180; integers are written as words.

    Numbers have full precision; missing bounds and infinite numbers are empty fields. Names are
    made safe, and one that a spreadsheet would read as a formula starts with an apostrophe.
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
    """Return the sections of (title, part, …) that are not empty, each with its non-empty parts."""
    shown = [
        Section(title, tuple(part for part in parts if part.rows)) for title, *parts in sections
    ]
    return tuple(section for section in shown if section.parts)


def described(members: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the members of an object of JSON for readers, several rows for a list or an object."""
    for name, value in members.items():
        topic, many = name.replace("_", " "), value if isinstance(value, list | tuple) else [value]
        if isinstance(value, Mapping):
            many = [f"{key}: {_short(own)}" for key, own in value.items()]
        rows = [_short(item) for item in many]
        more = [f"and {len(rows) - _MOST_MEMBERS} more: --format json has all"]
        for text in rows[:_MOST_MEMBERS] + more * (len(rows) > _MOST_MEMBERS) or ["none"]:
            yield topic, text
            topic = ""


def _short(value: Any) -> str:
    """Return the same as `one_line`, but numbers of many digits as `at_most`."""
    is_long = isinstance(value, float) and len(str(value)) > _MOST_DIGITS
    return at_most(value) if is_long else one_line(value)


def one_line(value: Any) -> str:
    """Return a value of JSON on one line."""
    match value:
        case dict():
            return ", ".join(f"{name} = {one_line(value[name])}" for name in sorted(value))
        case list() | tuple():
            return ", ".join(map(one_line, value)) or "none"
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
    return str(value)


def explained(code: str) -> Commands:
    """Return the command that explains the first of some findings."""
    return Commands((("more about the first", f"lipcert explain {code}"),))


def cell_text(cell: Cell, digits: int) -> str:
    """Return the words of a cell; bounds are rounded up to this many digits."""
    match cell:
        case str():
            return cell
        case tuple():
            return ", ".join(at_most(bound, digits) for bound in cell)
    return at_most(cell, digits)
