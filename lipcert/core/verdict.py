"""Verdict: the outcome of a check, as plain records from which every report is printed."""

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
"""What the stages of a check establish, in order; reports number them from 0."""


class Verdict(Enum):
    """The four possible answers of a check."""

    VALID = "valid"
    """Everything is proved, and every assumption is checked or accepted."""
    CONDITIONAL = "conditional"
    """Everything is proved, provided that the declared assumptions hold."""
    UNKNOWN = "unknown"
    """The checker cannot decide: the model is unreadable, or beyond its rules or limits."""
    INVALID = "invalid"
    """A claim does not follow, or the certificate is for another model."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One numbered stage of a check. reasons: why it failed; empty if it did not."""

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

    sha256: of the certificate. stages: those that were reached. assumptions: the ledger, if it was
    read. open_assumptions: ids of those that are neither checked nor accepted. weights: for each
    trained tensor, its name in the given weights: its own, or one that the certificate gives it.
    certificate: as it was read.
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
        """The reasons for which stages failed, each with its code."""
        return tuple(
            f"[{stage.code}] {reason}" for stage in self.stages for reason in stage.reasons
        )
