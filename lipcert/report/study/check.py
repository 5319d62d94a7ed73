"""Reading `lipcert.check/1`: the verdict of the checker and what it lists."""

from __future__ import annotations

from typing import Final

from lipcert.report.study.fields import FieldError, Fields
from lipcert.report.study.records import CheckFacts, LedgerEntry

VERDICTS: Final = ("valid", "conditional", "unknown", "invalid")


def read_check(document: Fields) -> CheckFacts:
    """What the checker said; `FieldError` where the document is not complete."""
    verdict = document.text("verdict")
    if verdict not in VERDICTS:
        raise FieldError(f"{document.where}.verdict is not one of {', '.join(VERDICTS)}")
    return CheckFacts(
        verdict=verdict,
        certificate=document.text("certificate"),
        reasons=document.texts("reasons"),
        promise=document.texts("promise"),
        ledger=tuple(_entry(item) for item in document.children("assumptions")),
        stages=tuple(
            (item.text("name"), item.flag("ok", False)) for item in document.children("steps")
        ),
    )


def _entry(item: Fields) -> LedgerEntry:
    status = item.text("status")
    if status != "checked":
        status = "declared" if item.flag("open", True) else "accepted"
    return LedgerEntry(item.text("id"), status, item.text("text"))
