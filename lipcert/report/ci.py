"""CI: what continuous integration shows of a result, whichever verb it comes from.

What enters: a result, turned into these records by the report of its verb. What leaves: plain
findings and test cases that JUnit, SARIF and GitHub annotations are written from. Invariants: a
result that does not hold has at least one finding of level error and one case that did not pass;
strings are verbatim, and the writers make them inert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, final

from lipcert.diagnostics import Diagnostic, Level

_OF_PARAMETERS: Final = frozenset({"LC023", "LC024", "LC102"})
_ORDER: Final = (Level.ERROR, Level.WARNING, Level.INFO)


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a reader must know. kind, place: what it is about ("group", "conv1").

    quantity: a word that tells findings of one code at one place apart, and never changes.
    """

    code: str
    level: Level
    kind: str
    place: str
    message: str
    remedy: str = ""
    quantity: str = ""

    @classmethod
    def of(cls, diagnostic: Diagnostic) -> Finding:
        """A diagnostic, which is about a node, a parameter or the whole model."""
        kind = "parameter" if diagnostic.code in _OF_PARAMETERS else "node"
        kind = kind if diagnostic.node else "model"
        return cls(
            diagnostic.code,
            diagnostic.level,
            kind,
            diagnostic.node,
            diagnostic.message,
            diagnostic.remedy,
        )


class Outcome(Enum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    """it was decided, and it does not hold"""
    ERROR = "error"
    """it could not be decided"""
    SKIPPED = "skipped"
    """it was not reached, because of another case"""


@final
@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was tested. suite: the kind of thing. message: why it did not pass."""

    suite: str
    name: str
    outcome: Outcome
    message: str = ""
    code: str = ""


@final
@dataclass(frozen=True, slots=True)
class CiReport:
    """A result. verb: as on the command line. file: what it speaks of, a path.

    headline: the answer in one sentence. findings: worst first. seconds: what it took, where known.
    """

    verb: str
    file: str
    headline: str
    holds: bool
    findings: tuple[Finding, ...]
    cases: tuple[Case, ...]
    properties: Mapping[str, str]
    seconds: float | None = None


def by_level(findings: list[Finding]) -> tuple[Finding, ...]:
    """Errors first, in their order otherwise."""
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.level)))
