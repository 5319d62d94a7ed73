"""Formats: one name, one writer; its modules are imported when it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lipcert.analysis.records import Analysis, BoundReport
    from lipcert.audit.records import AuditReport
    from lipcert.audit.twins import TwinReport
    from lipcert.report.ci import CiReport
    from lipcert.report.document import Document
    from lipcert.report.sources import Study
    from lipcert.suggestions.records import Suggestions

CI_FORMATS: Final = ("sarif", "junit", "github")
ANALYSIS_FORMATS: Final = ("text", "json", "markdown", "csv", "html", *CI_FORMATS)
AUDIT_FORMATS: Final = ("text", "json", "markdown", *CI_FORMATS)
CHECK_FORMATS: Final = ("text", "json", *CI_FORMATS)
SUGGEST_FORMATS: Final = ("text", "json", "markdown")
BOUND_FORMATS: Final = ("text", "json", "markdown", "html")
_FOLDED: Final = 40
_SUMMARY: Final = 200


def analysis_report(
    analysis: Analysis, name: str, *, width: int, color: bool, show_all: bool
) -> str:
    """The analysis in the format of that name, one of ANALYSIS_FORMATS."""
    match name:
        case "json":
            from lipcert.report.analysis import analysis_json

            return analysis_json(analysis)
        case "csv":
            from lipcert.report.analysis import analysis_csv

            return analysis_csv(analysis)
        case "html":
            from lipcert.report.sources import analysis_source, joined

            return study_report(joined([analysis_source(analysis)]), name)
    from lipcert.report.analysis import analysis_ci, analysis_document

    if name in CI_FORMATS:
        return ci_text(analysis_ci(analysis), name)
    most = _FOLDED if name == "text" and not show_all else None
    return document_text(analysis_document(analysis, most), name, width=width, color=color)


def audit_report(report: AuditReport, name: str, *, width: int, color: bool, show_all: bool) -> str:
    """The audit in the format of that name, one of AUDIT_FORMATS."""
    if name == "json":
        from lipcert.report.audit_json import audit_json

        return audit_json(report)
    from lipcert.report.audit import audit_ci, audit_document

    if name in CI_FORMATS:
        return ci_text(audit_ci(report), name)
    folded = None if show_all else _FOLDED
    most = folded if name == "text" else _SUMMARY
    return document_text(audit_document(report, most), name, width=width, color=color)


def twin_report(
    found: tuple[str, TwinReport], name: str, *, width: int, color: bool, show_all: bool
) -> str:
    """The twin run of a function, in the format of that name, one of AUDIT_FORMATS."""
    from lipcert.report.twin import twin_ci, twin_document, twin_json

    del show_all
    if name == "json":
        return twin_json(*found)
    if name in CI_FORMATS:
        return ci_text(twin_ci(*found), name)
    return document_text(twin_document(*found), name, width=width, color=color)


def bound_text(report: BoundReport, name: str, *, width: int, color: bool, show_all: bool) -> str:
    """Why a bound is so large, in the format of that name, one of BOUND_FORMATS."""
    from lipcert.report.reasons import bound_document, bound_object

    if name in {"json", "html"}:
        from lipcert.report.json import dump
        from lipcert.report.sources import joined, read_source

        found = bound_object(report)
        return (
            dump(found) if name == "json" else study_report(joined([read_source("", found)]), name)
        )
    most = _FOLDED if name == "text" and not show_all else None
    return document_text(bound_document(report, most), name, width=width, color=color)


def suggestions_report(
    found: Suggestions, name: str, *, width: int, color: bool, show_all: bool
) -> str:
    """The suggestions in the format of that name, one of SUGGEST_FORMATS."""
    from lipcert.report.suggestions import SHOWN, suggestions_document, suggestions_json

    if name == "json":
        return suggestions_json(found)
    most = SHOWN if name == "text" and not show_all else None
    return document_text(suggestions_document(found, most), name, width=width, color=color)


def study_report(study: Study, name: str) -> str:
    """The study as "html", "markdown" or "json"."""
    from lipcert.report.sources import study_documents, study_facts, study_object

    if name == "json":
        from lipcert.report.json import dump

        return dump(study_object(study))
    documents, facts = tuple(study_documents(study)), study_facts(study)
    if name == "html":
        from lipcert.report.html import page_html

        return page_html(facts, documents, study_object(study))
    from lipcert.report.document import Document
    from lipcert.report.markdown import markdown

    return markdown(Document("LipCert report", (), facts), *documents)


def document_text(document: Document, name: str, *, width: int = 120, color: bool = False) -> str:
    """The document as "text" or "markdown"."""
    if name == "markdown":
        from lipcert.report.markdown import markdown

        return markdown(document)
    from lipcert.report.text import text

    return text(document, width=width, color=color)


def ci_text(report: CiReport, name: str) -> str:
    """What CI systems show, in the format of that name, one of CI_FORMATS."""
    from lipcert.report.ci import github_annotations, junit_xml, sarif

    writers: dict[str, Callable[[CiReport], str]] = {
        "sarif": sarif,
        "junit": junit_xml,
        "github": github_annotations,
    }
    return writers[name](report)
