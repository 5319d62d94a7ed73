"""Text report of an audit, for a person at a terminal.

What enters: an audit, a width, whether to use colour. What leaves: text whose first lines are the
verdict and what it is worth. Invariant: strings of models, traces and users pass through `safe`
and are printed as text, never as markup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lipcert.audit.records import AuditReport, GroupAudit, Verdict
from lipcert.report.audit_findings import audit_findings
from lipcert.report.audit_numbers import measured, share_of, tightness_of
from lipcert.report.audit_rows import (
    GROUP_TITLES,
    VALUE_TITLES,
    check_sentence,
    checks_in_order,
    chosen_groups,
    chosen_values,
    group_cells,
    told,
    value_cells,
)
from lipcert.report.audit_statements import answer, fact_rows, file_line, meaning
from lipcert.report.numbers import bar
from lipcert.report.table import Column, print_table
from lipcert.report.text import canvas, text_of, two_columns
from lipcert.safe import safe, shortened

_MOST_ROWS: Final = 40
_MOST_BARS: Final = 12
_NAME_WIDTH: Final = 36
_STYLES: Final = {
    Verdict.PASS: "bold green",
    Verdict.VIOLATION: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.MISMATCH: "bold yellow",
}
_RANKS: Final = {"dimension": 5, "attacked": 2, "noticed from": 3, "undecided": 4, "node": 5}
_NAMES: Final = frozenset({"group", "value", "node", "worst example"})
_LEAST: Final = 16


def audit_text(report: AuditReport, *, width: int, color: bool, show_all: bool) -> str:
    """The whole report."""
    console = canvas(width, color)
    console.print(Text(safe(answer(report)), _STYLES[report.verdict]))
    console.print(Text(safe(meaning(report)), _STYLES[report.verdict]))
    console.print(Text(safe(file_line(report)), "dim"))
    most = None if show_all else _MOST_ROWS
    _list(console, "Why", report.reasons, most)
    _groups(console, report, most)
    _bars(console, report)
    _values(console, report, most)
    _checks(console, report, most)
    _list(console, "What could not be checked", report.notes, most)
    warned = [f"{item.code} {item.message}" for item in report.warnings]
    _list(console, "Warnings", warned, most)
    _section(console, "What was audited")
    _pairs(console, fact_rows(report))
    _remedies(console, report, most)
    return text_of(console)


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold"))


def _list(console: Console, title: str, sentences: Sequence[str], most: int | None) -> None:
    if not sentences:
        return
    _section(console, title)
    grid = two_columns()
    for sentence in sentences[:most]:
        grid.add_row("  -", Text(safe(sentence)))
    console.print(grid)
    _note(console, len(sentences) - len(sentences[:most]))


def _pairs(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    grid = two_columns()
    for topic, sentence in rows:
        grid.add_row(Text(f"  {shortened(topic, _NAME_WIDTH)}", "dim"), Text(safe(sentence)))
    console.print(grid)


def _groups(console: Console, report: AuditReport, most: int | None) -> None:
    if not report.groups:
        return
    _section(console, "Groups: the largest gradient norm of one example against its bound")
    chosen = chosen_groups(report, most)
    titles, rows = told(GROUP_TITLES, [group_cells(group) for group in chosen.rows])
    print_table(console, _columns(titles), _without_long_names(rows))
    _note(console, chosen.hidden)


def _bars(console: Console, report: AuditReport) -> None:
    """Tightness as bars; what exceeds the bound fills its bar and says so."""
    chosen = chosen_groups(report, _MOST_BARS)
    tried = [group for group in chosen.rows if tightness_of(group) is not None]
    if not tried:
        return
    _section(console, "How much of each bound was reached")
    grid = Table.grid(padding=(0, 2))
    for group in tried:
        grid.add_row(Text(f"  {shortened(group.name, _NAME_WIDTH)}"), *_bar(group))
    console.print(grid)


def _bar(group: GroupAudit) -> tuple[Text, Text]:
    share = tightness_of(group)
    if share is None or not math.isfinite(share):
        return Text(measured(share), "red"), Text(f"{bar(1.0)} not finite", "red")
    if share > 1.0:
        style = "red" if group.violations else "yellow"
        return Text(share_of(group), style), Text(f"{bar(1.0)} over the bound", style)
    return Text(share_of(group)), Text(bar(share), "red" if group.violations else "magenta")


def _values(console: Console, report: AuditReport, most: int | None) -> None:
    chosen = chosen_values(report, most)
    if not chosen.rows:
        return
    _section(console, "Inside the network: the bounds that were reached the furthest")
    titles, rows = told(VALUE_TITLES, [value_cells(value) for value in chosen.rows])
    print_table(console, _columns(titles), _without_long_names(rows))
    _note(console, chosen.hidden)


def _checks(console: Console, report: AuditReport, most: int | None) -> None:
    if not report.checks:
        return
    _section(console, "Checks")
    grid = two_columns()
    checks = checks_in_order(report)
    for check in checks[:most]:
        label = f"  {check.verdict.value} {shortened(check.name, _NAME_WIDTH)}"
        grid.add_row(Text(label, _STYLES[check.verdict]), Text(safe(check_sentence(check))))
    console.print(grid)
    _note(console, len(checks) - len(checks[:most]))


def _remedies(console: Console, report: AuditReport, most: int | None) -> None:
    """What to do, once for every code and advice."""
    findings = audit_findings(report)
    advice = dict.fromkeys((found.code, found.remedy) for found in findings if found.remedy)
    if not advice:
        return
    _section(console, "What to do")
    grid = two_columns()
    for code, remedy in list(advice)[:most]:
        grid.add_row(Text(f"  {code}", "cyan"), Text(safe(remedy)))
    console.print(grid)
    _note(console, len(advice) - len(list(advice)[:most]))
    console.print(Text(f"  lipcert explain {findings[0].code} says more", "dim"))


def _columns(titles: Sequence[str]) -> list[Column]:
    return [
        Column(
            title,
            right=title not in _NAMES and title != "quantity",
            least=_LEAST if title in _NAMES else 0,
            rank=_RANKS.get(title, 6 if title == "worst example" else 0),
        )
        for title in titles
    ]


def _without_long_names(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Numbers are short; a name of a thousand characters would push every column out."""
    return [tuple(shortened(cell, _NAME_WIDTH) for cell in row) for row in rows]


def _note(console: Console, hidden: int) -> None:
    if hidden > 0:
        console.print(Text(f"  {hidden:,} further rows: --all shows them", "dim"))
