"""Reports of results as people and CI systems get them; some are kept, word for word."""

import os
from pathlib import Path

from lipcert.cli.output import CI_FORMATS, FOLDED, document_text
from lipcert.report.analysis import analysis_document, analysis_json
from lipcert.report.audit import audit_ci, audit_document
from lipcert.report.ci import ci_text
from lipcert.report.inspection import Inspection, inspection_document
from lipcert.report.sources import page_of

KEPT = Path(__file__).parents[1] / "golden" / "texts"


def check_kept(name: str, texts) -> None:
    """These texts, by what they are of, are those that are kept: whoever changes one reads it."""
    found = "\n".join(f"=== {of} ===\n{text}" for of, text in texts.items())
    if "KEEP_TEXTS" in os.environ:
        (KEPT / name).write_text(found, encoding="utf-8")
    again = (
        "to keep it: KEEP_TEXTS=1 python -m pytest -n 0 tests/report tests/cli/test_documents.py"
    )
    assert found == (KEPT / name).read_text(encoding="utf-8"), again


def analysis_text(analysis, *, width: int, color: bool, show_all: bool) -> str:
    document = analysis_document(analysis, None if show_all else FOLDED)
    return document_text(document, "text", width=width, color=color)


def analysis_markdown(analysis) -> str:
    return document_text(analysis_document(analysis), "markdown")


def analysis_html(analysis) -> str:
    return page_of(analysis_json(analysis))


def audit_written(
    report, name: str, *, width: int = 200, color: bool = False, show_all: bool = False
) -> str:
    if name in CI_FORMATS:
        return ci_text(audit_ci(report), name)
    most = 200 if name == "markdown" else None if show_all else FOLDED
    return document_text(audit_document(report, most), name, width=width, color=color)


def inspection_text(inspection: Inspection, *, width: int, color: bool) -> str:
    return document_text(inspection_document(inspection), "text", width=width, color=color)
