"""View: what stands on the page, as plain records that every format prints.

What enters: what the other modules of this package found. What leaves: records. Strings are those
of the documents, and whoever writes them makes them safe; `svg` alone is finished text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import final


@final
class Tone(Enum):
    """How something is to be taken; the value is its class in the style sheet."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    PLAIN = "plain"


@final
@dataclass(frozen=True, slots=True)
class Card:
    """An answer: what it is about, its word, and sentences."""

    title: str
    word: str
    tone: Tone
    sentences: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class LedgerRow:
    """An assumption. status: a word with its tone, where somebody looked at it."""

    topic: str
    text: str
    status: str = ""
    tone: Tone = Tone.PLAIN


@final
@dataclass(frozen=True, slots=True)
class Ledger:
    """What the numbers of one document are conditional on."""

    title: str
    rows: tuple[LedgerRow, ...]


@final
@dataclass(frozen=True, slots=True)
class Column:
    """Of names, or of numbers."""

    title: str
    is_number: bool = False


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. note: what was left out."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its caption, and the numbers it shows."""

    key: str
    title: str
    caption: str
    svg: str
    table: Table


@final
@dataclass(frozen=True, slots=True)
class Page:
    """Everything but the figures, in the order of reading.

    findings: level, code, place, message and remedy. hidden_findings: how many were left out.
    commands: a comment and a command each.
    """

    title: str
    subject: tuple[tuple[str, str], ...]
    cards: tuple[Card, ...]
    numbers: Table
    ledgers: tuple[Ledger, ...]
    tables: tuple[Table, ...]
    findings: tuple[tuple[Tone, tuple[str, ...]], ...]
    hidden_findings: int
    commands: tuple[tuple[str, str], ...]
