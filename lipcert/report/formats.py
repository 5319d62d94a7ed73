"""Formats: their names by verb, and what writes a document or the findings of CI in each of them.

The modules of a format are imported when it is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lipcert.report.ci import CiReport
    from lipcert.report.document import Document

CI_FORMATS: Final = ("sarif", "junit", "github")
ANALYSIS_FORMATS: Final = ("text", "json", "markdown", "csv", "html", *CI_FORMATS)
AUDIT_FORMATS: Final = ("text", "json", "markdown", *CI_FORMATS)
CHECK_FORMATS: Final = ("text", "json", *CI_FORMATS)
SUGGEST_FORMATS: Final = ("text", "json", "markdown")
BOUND_FORMATS: Final = ("text", "json", "markdown", "html")
FOLDED: Final = 40
"""rows of a table in text, unless all are asked for"""


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
