"""Row: one claim of a paper next to what was measured, and the verdict on it.

What enters: the text of a claim, measured numbers. What leaves: lines of a Markdown table.
Invariant: a verdict follows from the numbers of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import final

__all__ = ["Part", "Row", "Verdict", "table"]


class Verdict(Enum):
    """What the measurement says of the claim."""

    REPRODUCED = "reproduced"
    SIGNS = "reproduced, with other signs"
    WIDER = "holds, beyond the claim"
    FAILS = "fails, beyond the claim"
    REFUTED = "refuted"
    DIFFERENT = "not reproduced"
    UNDECIDED = "undecided"
    """the interval holds both answers"""

    @classmethod
    def between(cls, low: float, high: float) -> Verdict:
        """For the claim that what lies between these is above 0."""
        if low > 0.0:
            return cls.REPRODUCED
        return cls.DIFFERENT if high < 0.0 else cls.UNDECIDED

    @classmethod
    def of(cls, holds: bool) -> Verdict:
        """For claims that one number decides."""
        return cls.REPRODUCED if holds else cls.REFUTED


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. setting: what is computed; claim: what the paper says of it.

    verdict: None where the paper says nothing.
    """

    setting: str
    claim: str
    measured: str
    verdict: Verdict | None = None


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A table. name: on the command line and in the page; paper: whose claims.

    duration: of the whole part on one core, in words; None for a quick part, which is run in the
    tests.
    """

    name: str
    paper: str
    rows: Callable[[], Iterator[Row]]
    duration: str | None = None

    @property
    def is_quick(self) -> bool:
        """Whether the part is run when no part is named."""
        return self.duration is None


def table(rows: Iterator[Row]) -> Iterator[str]:
    """The lines of the Markdown table, each as soon as it is known."""
    yield "| what | claim | measured | verdict |"
    yield "|---|---|---|---|"
    for row in rows:
        verdict = "–" if row.verdict is None else row.verdict.value
        yield f"| {row.setting} | {row.claim} | {row.measured} | {verdict} |"
