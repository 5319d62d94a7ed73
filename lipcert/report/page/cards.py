"""Cards: the answers of a study, each with a word, a tone and sentences.

What enters: a study. What leaves: what is bounded or proved, what a run costs, what an audit
found. Invariant: "proved" is said of what the checker accepted, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lipcert.audit.records import AuditReport
from lipcert.report.audit import TONES
from lipcert.report.audit_statements import answer, meaning
from lipcert.report.document import Answer, Tone
from lipcert.report.numbers import NO_BOUND, at_most
from lipcert.report.study.records import (
    AnalysisFacts,
    CertificateFacts,
    CheckFacts,
    PrivacyFacts,
    Study,
)

_MOST_REASONS: Final = 5
_CHECKED: Final[Mapping[str, tuple[Tone, str]]] = {
    "valid": (Tone.GOOD, "Everything claimed is proved."),
    "conditional": (
        Tone.OPEN,
        "Everything claimed is proved, if the declared assumptions hold that nobody checked.",
    ),
    "unknown": (Tone.OPEN, "The checker cannot tell."),
    "invalid": (Tone.BAD, "What is claimed does not follow."),
}


def cards_of(study: Study) -> tuple[Answer, ...]:
    """The answers, what is proved first."""
    cards = []
    if study.check is not None:
        cards.append(_checked(study.check))
    elif study.certificate is not None:
        cards.append(_claimed(study.certificate))
    if study.analysis is not None:
        cards.append(_bounded(study.analysis))
    if study.audit is not None:
        cards.append(_audited(study.audit))
    if study.privacy is not None:
        cards.append(_private(study.privacy))
    return tuple(cards)


def _checked(check: CheckFacts) -> Answer:
    tone, sentence = _CHECKED[check.verdict]
    reasons = check.reasons[:_MOST_REASONS]
    if len(check.reasons) > _MOST_REASONS:
        reasons = (*reasons, f"and {len(check.reasons) - _MOST_REASONS} more")
    sentences = (sentence, *check.promise, *reasons)
    return Answer(check.verdict.upper(), tone, "Certificate", sentences)


def _claimed(certificate: CertificateFacts) -> Answer:
    """A certificate without its check promises nothing yet."""
    return Answer(
        "CLAIMED",
        Tone.OPEN,
        "Certificate",
        (
            f"For {certificate.scope}, it claims a gradient norm of one example of "
            f"{_at_most(certificate.grad_norm)} and a sensitivity of "
            f"{_at_most(certificate.sensitivity)}.",
            "No check of this certificate is part of this report: `lipcert check` makes one.",
        ),
    )


def _bounded(facts: AnalysisFacts) -> Answer:
    if facts.analysis.network.sensitivity is None:
        return Answer("NO BOUND", Tone.BAD, "Analysis", (facts.promise,))
    return Answer("BOUNDED", Tone.PLAIN, "Analysis", (facts.promise,))


def _audited(report: AuditReport) -> Answer:
    reasons = report.reasons[:_MOST_REASONS]
    sentences = (answer(report), meaning(report), *reasons)
    return Answer(report.verdict.value.upper(), TONES[report.verdict], "Audit", sentences)


def _private(facts: PrivacyFacts) -> Answer:
    if facts.epsilon is None:
        return Answer("NO FINITE ε", Tone.BAD, "Privacy", ("The diagnostics say why.",))
    epsilon = at_most(facts.epsilon)
    return Answer(
        f"ε ≤ {epsilon}",
        Tone.PLAIN,
        "Privacy",
        (
            f"The run is (ε, δ)-differentially private with ε = {epsilon} and "
            f"δ = {facts.delta:g}, if the assumptions hold.",
        ),
    )


def _at_most(value: float | None) -> str:
    return NO_BOUND if value is None else f"at most {at_most(value)}"
