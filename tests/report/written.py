"""Reports of results as people get them."""

from lipcert.analysis.records import Analysis
from lipcert.report.formats import analysis_report, document_text
from lipcert.report.inspection import Inspection, inspection_document


def analysis_text(analysis: Analysis, *, width: int, color: bool, show_all: bool) -> str:
    return analysis_report(analysis, "text", width=width, color=color, show_all=show_all)


def analysis_markdown(analysis: Analysis) -> str:
    return analysis_report(analysis, "markdown", width=80, color=False, show_all=False)


def inspection_text(inspection: Inspection, *, width: int, color: bool) -> str:
    return document_text(inspection_document(inspection), "text", width=width, color=color)
