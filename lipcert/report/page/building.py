"""Building: the report of a study as a document, in the order of reading.

What enters: a study. What leaves: a `Document`: what is proved and found, the bounds of the whole,
what they are conditional on, and then layer by layer and group by group where they come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lipcert.report import document as doc
from lipcert.report.analysis import nodes_table, parameters_table
from lipcert.report.audit import DIMENSION, GROUP, MEASURED, checks_of, group_cells, values_table
from lipcert.report.audit_statements import fact_rows
from lipcert.report.document import Cell, Column, Section, Statement, Statements, Tone
from lipcert.report.numbers import at_most, percent
from lipcert.report.page.cards import cards_of
from lipcert.report.page.commands import commands_of
from lipcert.report.page.group_figures import group_figures, noise_figure
from lipcert.report.page.network_figures import network_figures
from lipcert.report.page.privacy_figures import privacy_figures
from lipcert.report.repeated import Line, told_once
from lipcert.report.study.groups import GroupRow, group_rows, noise_shares
from lipcert.report.study.records import CertificateFacts, LedgerEntry, Study

_MOST_FINDINGS: Final = 100
_STATUS: Final[Mapping[str, Tone]] = {"checked": Tone.GOOD, "accepted": Tone.GOOD}
_RELEASE: Final = (
    GROUP,
    DIMENSION,
    Column("G", True),
    Column("Δ", True, optional=True),
    Column("noise std", True, optional=True),
    Column("noise energy", True, optional=True),
)
_VALUE_COLUMNS: Final = (
    Column("value"),
    Column("op"),
    Column("‖value‖", True),
    Column("‖cotangent‖", True),
)


def study_document(study: Study, most: int | None = 300) -> doc.Document:
    """What a report says of everything that is known; tables of at most so many rows."""
    findings = told_once(
        Line((item.level, item.code), item.node, item.message, item.remedy)
        for item in study.findings
    )
    told = doc.Findings(findings[:_MOST_FINDINGS], max(len(findings) - _MOST_FINDINGS, 0))
    # what was asked first: the bounds and how they were tried, then where they come from
    figures = (
        *group_figures(study),
        *privacy_figures(study),
        *network_figures(study),
        *noise_figure(study),
    )
    return doc.Document(
        f"LipCert report: {study.model_path or 'a model'}",
        cards_of(study),
        Statements.of(list(_subject(study))),
        doc.sections_of(
            Section("Key numbers", (_key_numbers(study),), "numbers"),
            Section("Assumptions", tuple(_assumptions(study)), "assumptions"),
            Section("Diagnostics", (told,), "diagnostics"),
            Section("Charts", (doc.Charts(figures),), "charts"),
            Section("Groups", (_groups(study, most),)),
            *_tables(study, most),
            Section("How to make this again", (doc.Commands(commands_of(study)),), "again"),
        ),
    )


def _subject(study: Study) -> Iterator[tuple[str, str]]:
    if study.model_path:
        yield "model", study.model_path
    if study.model_sha256:
        yield "sha256", study.model_sha256
    if study.analysis is not None:
        yield "trained parameters", f"{study.analysis.analysis.model.parameters:,}"
    if study.certificate is not None:
        yield "certificate sha256", study.certificate.sha256
    files = [source.path for source in study.sources if source.path]
    if files:
        yield "made from", ", ".join(files)


def _key_numbers(study: Study) -> doc.Table:
    """The bounds of the whole network, as every document states them."""
    certificate = study.certificate
    claimed = [] if certificate is None else _claimed(certificate)
    if study.analysis is None:
        return _number_table(("bound of", "certificate"), claimed)
    answers = study.analysis.answers
    if certificate is None:
        return _number_table(("bound of", "analysis"), answers)
    rows = [(name, text, dict(claimed).get(name, "")) for name, text in answers]
    return _number_table(("bound of", "analysis", "certificate"), rows)


def _number_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> doc.Table:
    first, *others = titles
    return doc.table([Column(first), *(Column(title, True) for title in others)], rows)


def _claimed(certificate: CertificateFacts) -> list[tuple[str, str]]:
    """Under the words of the analysis."""
    bounds = {
        "Lipschitz constant of the network": certificate.lipschitz,
        "per-example gradient norm G": certificate.grad_norm,
        "sensitivity Δ": certificate.sensitivity,
    }
    return [
        (name, "not claimed" if bound is None else f"≤ {at_most(bound)}")
        for name, bound in bounds.items()
    ]


def _assumptions(study: Study) -> Iterator[Statements]:
    """Of the certificate, the analysis, the run and the audit, with what is known of each."""
    entries: Sequence[LedgerEntry] = () if study.check is None else study.check.ledger
    if not entries and study.certificate is not None:
        entries = study.certificate.ledger
    rows = [
        Statement(item.id, item.text, item.status, _STATUS.get(item.status, Tone.OPEN))
        for item in entries
    ]
    yield Statements(tuple(rows), "The certificate holds if")
    if study.analysis is not None:
        yield Statements.of(study.analysis.assumptions, "The analysis holds if")
    if study.privacy is not None:
        yield Statements.of(study.privacy.statement, "The ε holds if")
    if study.audit is not None:
        yield Statements.of(fact_rows(study.audit), "What was audited")


def _tables(study: Study, most: int | None) -> Iterator[Section]:
    if study.analysis is not None:
        analysis = study.analysis.analysis
        yield Section("Layers", (nodes_table(analysis, most),))
        yield Section("Parameters", (parameters_table(analysis, most),))
    elif study.certificate is not None:
        rows = [
            (item.value, item.op or "input", item.output_norm, item.cotangent_norm)
            for item in study.certificate.values
        ]
        yield Section("Values", (doc.table(_VALUE_COLUMNS, rows[:most], len(rows[most:])),))
    if study.audit is not None:
        yield Section("Audited values", (values_table(study.audit, most),))
        yield Section("Checks of the audit", (checks_of(study.audit),))
    if study.check is not None:
        steps = [(name, "yes" if holds else "no") for name, holds in study.check.stages]
        yield Section("Steps of the check", (Statements.of(steps),))


def _groups(study: Study, most: int | None) -> doc.Table:
    rows = group_rows(study)
    shares = noise_shares(study)
    audited = any(row.audit is not None for row in rows)
    cells = [_group(row, shares, audited) for row in rows[:most]]
    columns = (*_RELEASE, *MEASURED) if audited else _RELEASE
    return doc.table(columns, cells, len(rows) - len(cells))


def _group(row: GroupRow, shares: dict[str, float], audited: bool) -> tuple[Cell, ...]:
    release = ("", "") if row.release is None else (row.release.sensitivity, row.release.noise_std)
    share = percent(shares.get(row.name))
    if row.audit is None:
        measured = ("",) * len(MEASURED) * audited
        return (row.name, f"{row.dimension:,}", row.grad_norm, *release, share, *measured)
    name, dimension, bound, *found = group_cells(row.audit)
    return (name, dimension, bound, *release, share, *found[: len(MEASURED)])
