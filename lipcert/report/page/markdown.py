"""Markdown: a study for pull requests and wikis, without its figures.

What enters: a study. What leaves: Markdown in which every string of a document is inert.
"""

from __future__ import annotations

from lipcert.report.markdown import escaped, table
from lipcert.report.page.building import page_of
from lipcert.report.page.view import Card, Ledger, Table
from lipcert.report.study.records import Study
from lipcert.safe import safe


def study_markdown(study: Study) -> str:
    """The whole report."""
    page = page_of(study)
    sections = ["# LipCert report", table(("", ""), page.subject), *map(_card, page.cards)]
    if page.numbers.rows:
        sections += ["## Key numbers", _table(page.numbers)]
    if page.ledgers:
        sections += ["## Assumptions", *map(_ledger, page.ledgers)]
    if page.findings:
        header = ("level", "code", "where", "finding", "remedy")
        rows = [cells for _, cells in page.findings]
        sections += ["## Diagnostics", table(header, rows)]
    if page.hidden_findings:
        sections.append(f"{page.hidden_findings} further findings are left out")
    for item in page.tables:
        sections += [f"## {escaped(item.title)}", _table(item)]
    sections += ["## How to make this again", _commands(page.commands)]
    return "\n\n".join(sections) + "\n"


def _card(card: Card) -> str:
    sentences = "\n\n".join(escaped(sentence) for sentence in card.sentences)
    return f"**{escaped(card.title)}: {escaped(card.word)}**\n\n{sentences}"


def _ledger(ledger: Ledger) -> str:
    rows = [(row.topic, row.status, row.text) for row in ledger.rows]
    return f"{escaped(ledger.title)}:\n\n{table(('assumption', 'status', 'statement'), rows)}"


def _table(item: Table) -> str:
    text = table([column.title for column in item.columns], item.rows)
    return f"{text}\n\n{escaped(item.note)}" if item.note else text


def _commands(commands: tuple[tuple[str, str], ...]) -> str:
    """An indented block: nothing in it can end it, because every command is one line."""
    lines = [f"    # {safe(comment)}\n    {safe(command)}" for comment, command in commands]
    return "\n".join(lines)
