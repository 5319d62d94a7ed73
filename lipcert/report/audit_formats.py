"""Formats of an audit: one name, one writer.

What enters: an audit, the name of a format, and how text is to look. What leaves: the report.
Writers are imported when they are named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lipcert.audit.records import AuditReport

AUDIT_FORMATS: Final = ("text", "json", "markdown", "sarif", "junit", "github")


def audit_report(report: AuditReport, name: str, *, width: int, color: bool, show_all: bool) -> str:
    """The audit in the format of that name, one of AUDIT_FORMATS."""
    match name:
        case "text":
            from lipcert.report.audit_text import audit_text  # noqa: PLC0415

            return audit_text(report, width=width, color=color, show_all=show_all)
        case "json":
            from lipcert.report.audit_json import audit_json  # noqa: PLC0415

            return audit_json(report)
        case "markdown":
            from lipcert.report.audit_markdown import audit_markdown  # noqa: PLC0415

            return audit_markdown(report)
        case _:
            from lipcert.report.audit_ci import audit_ci  # noqa: PLC0415
            from lipcert.report.ci_formats import ci_text  # noqa: PLC0415

            return ci_text(audit_ci(report), name)
