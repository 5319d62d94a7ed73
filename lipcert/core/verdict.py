"""Verdict: what came of a check, as plain records that every report is printed from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lipcert.core.certificate import Assumption, Certificate

STAGES = (
    "the certificate is well-formed",
    "the model is the one that it describes",
    "every node is accounted for",
    "operator norms are proved",
    "values are bounded",
    "cotangents are bounded",
    "gradients, sensitivities and noise follow",
    "privacy follows",
    "assumptions are stated",
    "nothing is left out",
)
"""What the checker does, in this order; the numbers in reports count from 0."""


class Verdict(Enum):
    """The four answers of a check."""

    VALID = "valid"
    """everything is proved, and every assumption checked or accepted"""
    CONDITIONAL = "conditional"
    """everything is proved, provided that the declared assumptions hold"""
    UNKNOWN = "unknown"
    """the checker cannot decide: the model is unreadable, or beyond its rules or limits"""
    INVALID = "invalid"
    """a claim does not follow, or the certificate is of another model"""


@dataclass(frozen=True, slots=True)
class Stage:
    """One numbered step of a check; reasons: why it failed, nothing where it did not."""

    number: int
    reasons: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the stage of the check establishes."""
        return STAGES[self.number]

    @property
    def code(self) -> str:
        """The code of its failure, for `lipcert explain`."""
        return f"LC20{self.number}"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a check.

    sha256: of the certificate. stages: those that were reached. assumptions: the ledger, where it
    was read; open_assumptions: ids of those that are neither checked nor accepted. weights: for
    each trained tensor, the name under which given weights hold it: its own, or one that the
    certificate gives it. certificate: as it was read.
    """

    verdict: Verdict
    sha256: str
    stages: tuple[Stage, ...]
    assumptions: tuple[Assumption, ...] = ()
    open_assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    weights: Mapping[str, str] = field(default_factory=dict)
    certificate: Certificate | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the verdict is not better."""
        return tuple(
            f"[{stage.code}] {reason}" for stage in self.stages for reason in stage.reasons
        )
