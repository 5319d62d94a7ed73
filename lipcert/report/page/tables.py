"""Tables: the numbers of a study, layer by layer and group by group.

What enters: a study. What leaves: tables of text. A displayed bound is never below the bound; of
long tables the first rows are shown, and a note says so: the data of the page hold all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lipcert.analysis.records import ParameterReport
from lipcert.audit.records import AuditReport
from lipcert.report.attribution import gradient_shares
from lipcert.report.audit_rows import (
    VALUE_TITLES,
    check_sentence,
    checks_in_order,
    group_cells,
    value_cells,
)
from lipcert.report.node_rows import NODE_TITLES, node_cells
from lipcert.report.numbers import at_most, percent, shape_text
from lipcert.report.page.view import Column, Table
from lipcert.report.study.groups import GroupRow, group_rows, noise_shares
from lipcert.report.study.records import AnalysisFacts, CertificateFacts, CheckFacts, Study

_MOST_ROWS: Final = 300
_RELEASE: Final = ("group", "dimension", "G", "Δ", "noise std", "noise energy")
_AUDIT: Final = ("observed", "attacked", "tightness", "noticed from", "violations")
_NAMES: Final = frozenset(
    {"node", "op", "shape", "parameter", "group", "value", "quantity", "worst example", "check"}
    | {"verdict", "finding", "code", "step", "bound of"}
)


def table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose columns of names are known by their titles."""
    columns = tuple(Column(name, name not in _NAMES) for name in titles)
    shown = tuple(tuple(row) for row in rows[:_MOST_ROWS])
    hidden = len(rows) - len(shown)
    note = f"{hidden:,} further rows are in the data at the end of the page" if hidden else ""
    return Table(title, columns, shown, note)


def key_numbers(study: Study) -> Table:
    """The bounds of the whole network, as every document states them."""
    analysis, certificate = study.analysis, study.certificate
    if analysis is None:
        rows = [] if certificate is None else _claimed(certificate)
        return table("Key numbers", ("bound of", "certificate"), rows)
    if certificate is None:
        return table("Key numbers", ("bound of", "analysis"), analysis.answers)
    claimed = dict(_claimed(certificate))
    rows_of_both = [(name, text, claimed.get(name, "")) for name, text in analysis.answers]
    return table("Key numbers", ("bound of", "analysis", "certificate"), rows_of_both)


def tables_of(study: Study) -> tuple[Table, ...]:
    """Every table that the study has rows for."""
    found = [_groups(study)]
    if study.analysis is not None:
        found += [_layers(study.analysis), _parameters(study.analysis)]
    elif study.certificate is not None:
        found.append(_values(study.certificate))
    if study.audit is not None:
        found += [_audited(study.audit), _checks(study.audit)]
    if study.check is not None:
        found.append(_stages(study.check))
    return tuple(item for item in found if item.rows)


def _claimed(certificate: CertificateFacts) -> list[tuple[str, str]]:
    """Under the words of the analysis."""
    return [
        ("Lipschitz constant of the network", _bound(certificate.lipschitz)),
        ("per-example gradient norm G", _bound(certificate.grad_norm)),
        ("sensitivity Δ", _bound(certificate.sensitivity)),
    ]


def _groups(study: Study) -> Table:
    rows = group_rows(study)
    shares = noise_shares(study)
    audited = any(row.audit is not None for row in rows)
    titles = (*_RELEASE, *_AUDIT) if audited else _RELEASE
    cells = [_group(row, shares, audited) for row in rows]
    used = [i for i in range(len(titles)) if any(row[i] for row in cells)]
    return table("Groups", [titles[i] for i in used], [[row[i] for i in used] for row in cells])


def _group(row: GroupRow, shares: dict[str, float], audited: bool) -> tuple[str, ...]:
    release = row.release
    cells = (
        row.name,
        f"{row.dimension:,}",
        at_most(row.grad_norm),
        "" if release is None else at_most(release.sensitivity),
        "" if release is None else at_most(release.noise_std),
        percent(shares.get(row.name)),
    )
    if row.audit is None:
        return (*cells, *("" for _ in _AUDIT)) if audited else cells
    measured = group_cells(row.audit)
    return (*cells[:2], measured[2], *cells[3:], *measured[3:8])


def _layers(facts: AnalysisFacts) -> Table:
    return table("Layers", NODE_TITLES, [node_cells(node) for node in facts.analysis.nodes])


def _parameters(facts: AnalysisFacts) -> Table:
    shares = gradient_shares(facts.analysis)
    titles = ("parameter", "shape", "group", "G", "Δ", "noise std", "share of G²")
    rows = [_parameter(item, shares.get(item.name)) for item in facts.analysis.parameters]
    return table("Parameters", titles, rows)


def _parameter(item: ParameterReport, share: float | None) -> tuple[str, ...]:
    if not item.trainable:
        return (item.name, shape_text(item.shape), "not trained", "", "", "", "")
    return (
        item.name,
        shape_text(item.shape),
        item.group or "",
        at_most(item.grad_norm),
        at_most(item.sensitivity),
        at_most(item.noise_std),
        percent(share),
    )


def _values(certificate: CertificateFacts) -> Table:
    rows = [
        (item.value, item.op or "input", at_most(item.output_norm), at_most(item.cotangent_norm))
        for item in certificate.values
    ]
    return table("Values", ("value", "op", "‖value‖", "‖cotangent‖"), rows)


def _audited(report: AuditReport) -> Table:
    rows = [value_cells(value) for value in report.values]
    return table("Audited values", VALUE_TITLES, rows)


def _checks(report: AuditReport) -> Table:
    rows = [
        (check.verdict.value, check.name, check_sentence(check), check.code)
        for check in checks_in_order(report)
    ]
    return table("Checks of the audit", ("verdict", "check", "finding", "code"), rows)


def _stages(check: CheckFacts) -> Table:
    rows = [(name, "yes" if holds else "no") for name, holds in check.stages]
    return table("Steps of the check", ("step", "verdict"), rows)


def _bound(value: float | None) -> str:
    return "not claimed" if value is None else f"≤ {at_most(value)}"
