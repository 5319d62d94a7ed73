"""Cards: the answers of a study, each with a word, a tone and sentences.

What enters: a study. What leaves: what is bounded or proved, what a run costs, what an audit
found. Invariant: "proved" is said of what the checker accepted, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from lipcert.report.audit import TONES
from lipcert.report.audit_statements import answer, meaning
from lipcert.report.document import Answer, Tone
from lipcert.report.numbers import NO_BOUND, at_most
from lipcert.report.study.records import CertificateFacts, CheckFacts, PrivacyFacts, Study

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
    return tuple(_cards(study))


def _cards(study: Study) -> Iterator[Answer]:
    if study.check is not None:
        yield _checked(study.check)
    elif study.certificate is not None:
        yield _claimed(study.certificate)
    if study.analysis is not None:
        is_lost = study.analysis.analysis.network.sensitivity is None
        word, tone = ("NO BOUND", Tone.BAD) if is_lost else ("BOUNDED", Tone.PLAIN)
        yield Answer(word, tone, "Analysis", (study.analysis.promise,))
    if study.audit is not None:
        report = study.audit
        sentences = (answer(report), meaning(report), *report.reasons[:_MOST_REASONS])
        yield Answer(report.verdict.value.upper(), TONES[report.verdict], "Audit", sentences)
    if study.privacy is not None:
        yield _private(study.privacy)


def _checked(check: CheckFacts) -> Answer:
    tone, sentence = _CHECKED[check.verdict]
    reasons = check.reasons[:_MOST_REASONS]
    if len(check.reasons) > _MOST_REASONS:
        reasons = (*reasons, f"and {len(check.reasons) - _MOST_REASONS} more")
    sentences = (sentence, *check.promise, *reasons)
    return Answer(check.verdict.upper(), tone, "Certificate", sentences)


def _claimed(certificate: CertificateFacts) -> Answer:
    """A certificate without its check promises nothing yet."""
    sentences = (
        f"For {certificate.scope}, it claims a gradient norm of one example of "
        f"{_at_most(certificate.grad_norm)} and a sensitivity of "
        f"{_at_most(certificate.sensitivity)}.",
        "No check of this certificate is part of this report: `lipcert check` makes one.",
    )
    return Answer("CLAIMED", Tone.OPEN, "Certificate", sentences)


def _private(facts: PrivacyFacts) -> Answer:
    if facts.epsilon is None:
        return Answer("NO FINITE ε", Tone.BAD, "Privacy", ("The diagnostics say why.",))
    epsilon = at_most(facts.epsilon)
    sentence = (
        f"The run is (ε, δ)-differentially private with ε = {epsilon} and δ = {facts.delta:g}, if "
        "the assumptions hold."
    )
    return Answer(f"ε ≤ {epsilon}", Tone.PLAIN, "Privacy", (sentence,))


def _at_most(value: float | None) -> str:
    return NO_BOUND if value is None else f"at most {at_most(value)}"
