"""Building: the page of a study, and its figures."""

from __future__ import annotations

from typing import Final

from lipcert.report.page.cards import cards_of
from lipcert.report.page.commands import commands_of
from lipcert.report.page.group_figures import (
    bound_figure,
    histogram_figures,
    noise_figure,
    tightness_figure,
)
from lipcert.report.page.ledgers import ledgers_of
from lipcert.report.page.network_figures import profile_figures, share_figure, stretch_figure
from lipcert.report.page.privacy_figures import privacy_figures
from lipcert.report.page.tables import key_numbers, tables_of
from lipcert.report.page.view import Figure, Page, Tone
from lipcert.report.repeated import Line, told_once
from lipcert.report.study.records import Study

_MOST_FINDINGS: Final = 100
_LEVELS: Final = {"error": Tone.BAD, "warning": Tone.OPEN}


def page_of(study: Study) -> Page:
    """What the page says."""
    findings = told_once(
        Line((item.level, item.code), item.node, item.message, item.remedy)
        for item in study.findings
    )
    return Page(
        title=f"LipCert report: {study.model_path or 'a model'}",
        subject=_subject(study),
        cards=cards_of(study),
        numbers=key_numbers(study),
        ledgers=ledgers_of(study),
        tables=tables_of(study),
        findings=tuple(_finding(line) for line in findings[:_MOST_FINDINGS]),
        hidden_findings=max(len(findings) - _MOST_FINDINGS, 0),
        commands=commands_of(study),
    )


def figures_of(study: Study) -> tuple[Figure, ...]:
    """What was asked first: the bounds and how they were tried, then where they come from."""
    found = (
        bound_figure(study),
        tightness_figure(study),
        *histogram_figures(study),
        *privacy_figures(study),
        stretch_figure(study),
        share_figure(study),
        *profile_figures(study),
        noise_figure(study),
    )
    return tuple(item for item in found if item is not None)


def _subject(study: Study) -> tuple[tuple[str, str], ...]:
    rows = []
    if study.model_path:
        rows.append(("model", study.model_path))
    if study.model_sha256:
        rows.append(("sha256", study.model_sha256))
    if study.analysis is not None:
        rows.append(("trained parameters", f"{study.analysis.analysis.model.parameters:,}"))
    if study.certificate is not None:
        rows.append(("certificate sha256", study.certificate.sha256))
    files = [source.path for source in study.sources if source.path]
    if files:
        rows.append(("made from", ", ".join(files)))
    return tuple(rows)


def _finding(line: Line) -> tuple[Tone, tuple[str, ...]]:
    tone = _LEVELS.get(line.label[0], Tone.PLAIN)
    return tone, (*line.label, line.where, line.what, line.remedy)
