"""Markdown report of an audit, for a step summary or a pull request.

What enters: an audit. What leaves: GitHub-flavoured Markdown below one mebibyte, the verdict
first, in which every string of a model, a trace or a user is inert. Invariant: what was cut is
said, and what violates is cut last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lipcert.audit.records import AuditReport
from lipcert.report.audit_findings import audit_findings
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
from lipcert.report.markdown import escaped, table
from lipcert.safe import shortened

LARGEST: Final = 1024 * 1024 - 1
"""bytes in UTF-8; GitHub refuses a step summary of 1 MiB"""

_MOST_ROWS: Final = 200
_LONGEST: Final = 300
_CUT: Final = "\n\nThe rest was cut: it does not fit into a step summary.\n"


def audit_markdown(report: AuditReport) -> str:
    """The whole report."""
    sections = [
        "# LipCert audit",
        f"**{escaped(answer(report))}** {escaped(meaning(report))}",
        escaped(shortened(file_line(report), _LONGEST)),
        *_findings(report),
        *_groups(report),
        *_values(report),
        *_checks(report),
        *_list("What could not be checked", report.notes),
        "## What was audited",
        _table(("", ""), fact_rows(report)),
    ]
    return _cut("\n\n".join(sections) + "\n")


def _list(title: str, sentences: Sequence[str]) -> list[str]:
    lines = [f"- {escaped(shortened(text, _LONGEST))}" for text in sentences[:_MOST_ROWS]]
    hidden = len(sentences) - len(lines)
    return [f"## {title}", "\n".join(lines), *_note(hidden)] if lines else []


def _findings(report: AuditReport) -> list[str]:
    why = _list("Why", report.reasons)
    findings = audit_findings(report)
    if not findings:
        return why
    rows = [
        (found.level.value, found.code, f"{found.kind} {found.place}", found.message, found.remedy)
        for found in findings[:_MOST_ROWS]
    ]
    titles = ("level", "code", "where", "finding", "remedy")
    return [*why, "## Findings", _table(titles, rows), *_note(len(findings) - len(rows))]


def _groups(report: AuditReport) -> list[str]:
    chosen = chosen_groups(report, _MOST_ROWS)
    titles, rows = told(GROUP_TITLES, [group_cells(group) for group in chosen.rows])
    return _section("Groups", titles, rows, chosen.hidden)


def _values(report: AuditReport) -> list[str]:
    chosen = chosen_values(report, _MOST_ROWS)
    titles, rows = told(VALUE_TITLES, [value_cells(value) for value in chosen.rows])
    return _section("Inside the network", titles, rows, chosen.hidden)


def _checks(report: AuditReport) -> list[str]:
    checks = checks_in_order(report)
    rows = [(item.verdict.value, item.name, check_sentence(item)) for item in checks[:_MOST_ROWS]]
    return _section("Checks", ("verdict", "check", "finding"), rows, len(checks) - len(rows))


def _section(
    title: str, titles: Sequence[str], rows: Sequence[Sequence[str]], hidden: int
) -> list[str]:
    return [f"## {title}", _table(titles, rows), *_note(hidden)] if rows else []


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(titles, [[shortened(cell, _LONGEST) for cell in row] for row in rows])


def _note(hidden: int) -> list[str]:
    return [f"{hidden:,} further rows are in the other formats."] if hidden > 0 else []


def _cut(text: str) -> str:
    """At the end of a line, with a note."""
    data = text.encode("utf-8")
    if len(data) <= LARGEST:
        return text
    head = data[: LARGEST - len(_CUT.encode("utf-8"))].decode("utf-8", "ignore")
    return head.rpartition("\n")[0] + _CUT
