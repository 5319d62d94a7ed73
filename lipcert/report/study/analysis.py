"""Reading `lipcert.analysis/1` back into the records it was written from.

What enters: the document. What leaves: the analysis (without an account of its run) and what it
says in words. Findings are read apart, since a later version may know more codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lipcert.analysis.records import Analysis
from lipcert.diagnostics import CODES, Diagnostic, Level
from lipcert.report.json import DOCUMENT, FieldError
from lipcert.report.statements import answer_rows, assumption_rows, promise
from lipcert.report.study.records import AnalysisFacts, Finding


def analysis_in(document: Mapping[str, object]) -> Analysis:
    """The analysis in a document; `FieldError` where it is not a complete one."""
    found = DOCUMENT.read(Analysis, {**document, "diagnostics": []}, "analysis", privacy=None)
    loss = {name: said for name, said in found.assumptions.loss.items() if name != "reduction"}
    levels = {level.value for level in Level}
    return replace(
        found,
        assumptions=replace(found.assumptions, loss=loss),
        diagnostics=tuple(
            Diagnostic(item.code, Level(item.level), item.node, item.message, item.remedy)
            for item in findings_of(document)
            if item.code in CODES and item.level in levels
        ),
    )


def read_analysis(document: Mapping[str, object]) -> AnalysisFacts:
    """The same with its words."""
    analysis = analysis_in(document)
    try:
        return AnalysisFacts(
            analysis,
            promise(analysis),
            tuple(assumption_rows(analysis)),
            tuple(answer_rows(analysis)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FieldError(f"analysis.assumptions: {error}") from error


def findings_of(document: Mapping[str, object]) -> tuple[Finding, ...]:
    """The list `diagnostics` of any document."""
    found: tuple[Finding, ...] = DOCUMENT.read_any(
        tuple[Finding, ...], document.get("diagnostics"), "diagnostics"
    )
    return found
