"""Study: everything known of one model, as plain records that report formats print.

What enters: what the readers of documents found. What leaves: a frozen `Study`, and a row for each
of its groups, in the order of the network. Invariants: all its parts speak of the model with the
digest `model_sha256` (None: no document names one); bound and observations of a row come from the
same document, of an audit where there is one. Strings are those of the documents: whoever prints
them makes them safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from lipcert.analysis.records import Analysis, GroupReport
from lipcert.audit.records import AuditReport, GroupAudit
from lipcert.privacy.plan import TrainingPlan

Rows = tuple[tuple[str, str], ...]


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """A diagnostic of any document; level: "error", "warning" or "info"."""

    code: str
    level: str
    node: str
    message: str
    remedy: str


@final
@dataclass(frozen=True, slots=True)
class Curve:
    """ε over the steps of a run, or over its noise multiplier; accountant: which one drew it."""

    points: tuple[tuple[float, float], ...]
    accountant: str


@final
@dataclass(frozen=True, slots=True)
class PrivacyFacts:
    """What a run costs. plan: None where the document does not describe one completely.

    curves: those that the document holds, by "steps" and "noise-multiplier".
    """

    epsilon: float | None
    delta: float
    noise_multiplier: float | None
    accountant: str
    plan: TrainingPlan | None
    statement: Rows
    curves: Mapping[str, Curve]


@final
@dataclass(frozen=True, slots=True)
class AnalysisFacts:
    """An analysis without its privacy, and what it says in words."""

    analysis: Analysis
    promise: str
    assumptions: Rows
    answers: Rows


@final
@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An assumption of a certificate; status: "checked", "accepted" or "declared"."""

    id: str
    status: str
    text: str


@final
@dataclass(frozen=True, slots=True)
class ValueBound:
    """What is claimed of a value of the network and of its cotangent."""

    value: str
    node: str
    op: str
    output_norm: float | None
    cotangent_norm: float | None


@final
@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What a certificate claims; sha256: of its file.

    privacy_status: whether the checker derives the ε ("recomputed") or takes it ("declared").
    """

    sha256: str
    model_sha256: str
    scope: str
    ledger: tuple[LedgerEntry, ...]
    values: tuple[ValueBound, ...]
    groups: tuple[GroupReport, ...]
    lipschitz: float | None
    grad_norm: float | None
    sensitivity: float | None
    privacy: PrivacyFacts | None
    privacy_status: str


@final
@dataclass(frozen=True, slots=True)
class CheckFacts:
    """What the checker said. certificate: the digest of the file it read."""

    verdict: str
    certificate: str
    reasons: tuple[str, ...]
    promise: tuple[str, ...]
    ledger: tuple[LedgerEntry, ...]
    stages: tuple[tuple[str, bool], ...]


@final
@dataclass(frozen=True, slots=True)
class Source:
    """A document: its path, its kind, and the object in it; of a certificate also its claims."""

    path: str
    schema: str
    document: Mapping[str, object]
    certificate: CertificateFacts | None = None


@final
@dataclass(frozen=True, slots=True)
class Study:
    """All that is known of one model; None: no document says it."""

    model_path: str
    model_sha256: str | None
    analysis: AnalysisFacts | None
    certificate: CertificateFacts | None
    check: CheckFacts | None
    audit: AuditReport | None
    privacy: PrivacyFacts | None
    findings: tuple[Finding, ...]
    sources: tuple[Source, ...]


@final
@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group; release: its sensitivity and noise. audit: what was measured of it."""

    name: str
    dimension: int
    grad_norm: float | None
    release: GroupReport | None
    audit: GroupAudit | None


def group_rows(study: Study) -> tuple[GroupRow, ...]:
    """Every group of the study."""
    stated = _stated(study)
    if study.audit is None or not study.audit.groups:
        return tuple(
            GroupRow(group.name, group.dimension, group.grad_norm, group, None) for group in stated
        )
    by_name = {group.name: group for group in stated}
    return tuple(
        GroupRow(item.name, item.dimension, item.grad_norm_bound, by_name.get(item.name), item)
        for item in study.audit.groups
    )


def noise_shares(study: Study) -> dict[str, float]:
    """The share of every group in the noise energy Σ d·s² (empty: not known of every group)."""
    groups = _stated(study)
    energies = {
        group.name: group.dimension * (group.noise_std * group.noise_std)
        for group in groups
        if group.noise_std is not None
    }
    whole = sum(energies.values())
    if len(energies) < len(groups) or not 0.0 < whole < float("inf"):
        return {}
    return {name: energy / whole for name, energy in energies.items()}


def _stated(study: Study) -> tuple[GroupReport, ...]:
    """Of the analysis, else of the certificate."""
    if study.analysis is not None:
        return study.analysis.analysis.groups
    return study.certificate.groups if study.certificate is not None else ()
