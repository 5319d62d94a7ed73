"""Verdict: what came of a check, as plain records that every report is printed from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from lipcert.core.certificate import Assumption, Certificate
from lipcert.core.ledger import EVALUATION
from lipcert.core.ledger.mechanism import Mechanism

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
    was read; open_assumptions: ids of those that are neither checked nor accepted. promise: what
    is proved, in words. weights: for each trained tensor, the name under which given weights hold
    it: its own, or one that the certificate gives it.
    """

    verdict: Verdict
    sha256: str
    stages: tuple[Stage, ...]
    assumptions: tuple[Assumption, ...] = ()
    open_assumptions: tuple[str, ...] = ()
    promise: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    weights: Mapping[str, str] = field(default_factory=dict)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the verdict is not better."""
        return tuple(
            f"[{stage.code}] {reason}" for stage in self.stages for reason in stage.reasons
        )


def promise(
    certificate: Certificate, mechanism: Mechanism, assumptions: Sequence[Assumption]
) -> Iterator[str]:
    """Sentences, each of which holds if the assumptions do."""
    weights = "the weights of the file"
    if certificate.scope.kind == "constraint-set":
        held = " within the constraints" if certificate.scope.constraints else ""
        weights = f"every set of weights{held}"
    if any(item.id == EVALUATION for item in assumptions):
        weights += ", in eval mode"
    network, privacy = certificate.network, certificate.privacy
    if network.lipschitz is not None:
        yield (
            f"For {weights}, {mechanism.output} moves by at most {network.lipschitz!r} times as "
            "much as an admissible input."
        )
    if network.grad_norm is not None:
        yield (
            f"For every admissible example and {weights}, {mechanism.gradient} has a norm of "
            f"at most {network.grad_norm!r}, and per parameter of at most what is claimed there."
        )
    if network.sensitivity is not None:
        yield (
            f"Neighbouring data sets move what a step releases by at most {network.sensitivity!r}."
        )
    if privacy is not None:
        yield (
            f"The run is ({privacy.epsilon!r}, {privacy.delta})-differentially private "
            f"(epsilon {privacy.status})."
        )
