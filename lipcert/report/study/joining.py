"""Joining: several documents of one model become one study, and one document `lipcert.report/1`.

What enters: documents. What leaves: a `Study`; JSON that holds every document as it was. Invariant:
documents of different models, two of one kind, or a check whose certificate is not among them are
refused: one page has one subject.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from lipcert.analysis.records import Analysis
from lipcert.audit.records import AuditReport
from lipcert.errors import NoVerdictError, UsageError
from lipcert.report.audit_findings import audit_findings
from lipcert.report.audit_json import audit_from_document
from lipcert.report.json import FieldError, JsonObject, analysis_json, dump
from lipcert.report.study.reading import findings_of, read_analysis, read_check, read_privacy
from lipcert.report.study.records import (
    AnalysisFacts,
    CertificateFacts,
    CheckFacts,
    Finding,
    PrivacyFacts,
    Source,
    Study,
)
from lipcert.version import __version__

ANALYSIS: Final = "lipcert.analysis/1"
CERTIFICATE: Final = "lipcert.certificate/1"
CHECK: Final = "lipcert.check/1"
AUDIT: Final = "lipcert.audit/1"
PRIVACY: Final = "lipcert.privacy/1"
KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        ANALYSIS: "lipcert analyze --format json",
        CERTIFICATE: "lipcert certify",
        CHECK: "lipcert check --format json",
        AUDIT: "lipcert audit --format json",
        PRIVACY: "lipcert privacy --format json",
    }
)
"""What a report is made of, and the command that writes it."""

_LEVELS: Final = {"error": 0, "warning": 1}
_Named = tuple[str, str]
_Part = TypeVar("_Part")


def joined(sources: Sequence[Source]) -> Study:
    """What the documents say together."""
    by_kind = _by_kind(sources)
    analysis = _analysis(by_kind.get(ANALYSIS))
    certificate = by_kind[CERTIFICATE].certificate if CERTIFICATE in by_kind else None
    check = _check(by_kind.get(CHECK))
    audit = _audit(by_kind.get(AUDIT))
    digests = _digests(by_kind, analysis, certificate, audit)
    _check_subject(by_kind, check, certificate)
    return Study(
        model_path=_path(analysis, audit),
        model_sha256=digests[0][1] if digests else None,
        analysis=analysis,
        certificate=certificate,
        check=check,
        audit=audit,
        privacy=_privacy(by_kind, certificate),
        findings=_findings(sources, audit),
        sources=tuple(sources),
    )


def analysis_study(analysis: Analysis) -> Study:
    """A study of one analysis that is in no file yet."""
    return joined([Source("", ANALYSIS, json.loads(analysis_json(analysis)))])


def _by_kind(sources: Sequence[Source]) -> dict[str, Source]:
    found: dict[str, Source] = {}
    for source in sources:
        if source.schema not in KINDS:
            raise NoVerdictError(
                f"{source.path}: schema {source.schema!r} is none that a report is made of; "
                f"give files of {', '.join(KINDS.values())}"
            )
        if source.schema in found:
            raise UsageError(
                f"report: {found[source.schema].path} and {source.path} are both "
                f"{source.schema}; give one of a kind"
            )
        found[source.schema] = source
    return found


def _digests(
    by_kind: Mapping[str, Source],
    analysis: AnalysisFacts | None,
    certificate: CertificateFacts | None,
    audit: AuditReport | None,
) -> list[_Named]:
    """Path and model of every document that names its model; all the same."""
    named: list[_Named] = []
    if analysis is not None:
        named.append((by_kind[ANALYSIS].path, analysis.analysis.model.sha256))
    if certificate is not None:
        named.append((by_kind[CERTIFICATE].path, certificate.model_sha256))
    if audit is not None and audit.model_sha256:
        named.append((by_kind[AUDIT].path, audit.model_sha256))
    for path, digest in named[1:]:
        if digest != named[0][1]:
            raise UsageError(
                f"report: {named[0][0]} is about the model {named[0][1][:12]}, {path} about "
                f"{digest[:12]}; write one report for each"
            )
    return named


def _check_subject(
    by_kind: Mapping[str, Source], check: CheckFacts | None, certificate: CertificateFacts | None
) -> None:
    """A check names its certificate alone, so that has to be there beside anything else."""
    if check is None or len(by_kind) == 1:
        return
    path = by_kind[CHECK].path
    if certificate is None:
        raise UsageError(f"report: {path} does not name its model; give its certificate as well")
    if certificate.sha256 != check.certificate:
        raise UsageError(
            f"report: {path} is a check of the certificate {check.certificate[:12]}, "
            f"{by_kind[CERTIFICATE].path} is {certificate.sha256[:12]}; check it again"
        )


def _analysis(source: Source | None) -> AnalysisFacts | None:
    return None if source is None else _read(source, read_analysis)


def _check(source: Source | None) -> CheckFacts | None:
    return None if source is None else _read(source, read_check)


def _audit(source: Source | None) -> AuditReport | None:
    if source is None:
        return None
    try:
        return audit_from_document(source.document)
    except NoVerdictError as error:
        raise NoVerdictError(f"{source.path}: {error}") from error


def _privacy(
    by_kind: Mapping[str, Source], certificate: CertificateFacts | None
) -> PrivacyFacts | None:
    """From the document of `lipcert privacy`, else of the analysis, else of the certificate."""
    analysed = by_kind.get(ANALYSIS)
    found = None
    if analysed is not None and analysed.document.get("privacy") is not None:
        found = _read(analysed, read_privacy)
    if PRIVACY not in by_kind:
        return found or (certificate.privacy if certificate is not None else None)
    stated = _read(by_kind[PRIVACY], read_privacy)
    if found is not None and (found.plan, found.noise_multiplier) != (
        stated.plan,
        stated.noise_multiplier,
    ):
        raise UsageError(
            f"report: {by_kind[PRIVACY].path} is about another run than {by_kind[ANALYSIS].path}; "
            "leave one of them out"
        )
    return stated


def _findings(sources: Sequence[Source], audit: AuditReport | None) -> tuple[Finding, ...]:
    """Of all documents, errors first, none twice."""
    found = [
        finding
        for source in sources
        if source.schema in {ANALYSIS, PRIVACY}
        for finding in _read(source, findings_of)
    ]
    if audit is not None:
        found += [
            Finding(item.code, item.level.value, item.place, item.message, item.remedy)
            for item in audit_findings(audit)
        ]
    return tuple(
        sorted(dict.fromkeys(found), key=lambda finding: _LEVELS.get(finding.level, len(_LEVELS)))
    )


def _path(analysis: AnalysisFacts | None, audit: AuditReport | None) -> str:
    if analysis is not None:
        return analysis.analysis.model.path
    return audit.model if audit is not None else ""


def _read(source: Source, reader: Callable[[Mapping[str, object]], _Part]) -> _Part:
    try:
        return reader(source.document)
    except FieldError as error:
        raise NoVerdictError(
            f"{source.path}: not a complete document ({error}); write it again with "
            f"`{KINDS[source.schema]}`"
        ) from error


def study_document(study: Study) -> JsonObject:
    """The study as an object of JSON."""
    return {
        "schema": "lipcert.report/1",
        "tool": {"name": "lipcert", "version": __version__},
        "model": {"path": study.model_path, "sha256": study.model_sha256},
        "sources": [
            {"path": source.path, "schema": source.schema, "document": source.document}
            for source in study.sources
        ],
    }


def study_json(study: Study) -> str:
    """Its text."""
    return dump(study_document(study))
