"""Ledgers: the assumptions of every document, with what is known of their status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lipcert.report.audit_statements import fact_rows
from lipcert.report.page.view import Ledger, LedgerRow, Tone
from lipcert.report.study.records import LedgerEntry, Rows, Study

_STATUS: Final[Mapping[str, Tone]] = {
    "checked": Tone.GOOD,
    "accepted": Tone.GOOD,
    "declared": Tone.OPEN,
}


def ledgers_of(study: Study) -> tuple[Ledger, ...]:
    """Of the certificate, the analysis, the run and the audit."""
    found = []
    ledger = study.check.ledger if study.check is not None else ()
    if not ledger and study.certificate is not None:
        ledger = study.certificate.ledger
    if ledger:
        found.append(Ledger("The certificate holds if", tuple(map(_entry, ledger))))
    if study.analysis is not None:
        found.append(_plain("The analysis holds if", study.analysis.assumptions))
    if study.privacy is not None and study.privacy.statement:
        found.append(_plain("The ε holds if", study.privacy.statement))
    if study.audit is not None:
        found.append(_plain("What was audited", tuple(fact_rows(study.audit))))
    return tuple(found)


def _entry(entry: LedgerEntry) -> LedgerRow:
    return LedgerRow(entry.id, entry.text, entry.status, _STATUS.get(entry.status, Tone.OPEN))


def _plain(title: str, rows: Rows) -> Ledger:
    return Ledger(title, tuple(LedgerRow(topic, text) for topic, text in rows))
