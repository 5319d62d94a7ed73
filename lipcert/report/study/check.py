"""Reading `lipcert.check/1`: the verdict of the checker and what it lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from lipcert.report.json import DOCUMENT
from lipcert.report.study.records import CheckFacts, LedgerEntry


@final
@dataclass(frozen=True, slots=True)
class _Assumption:
    id: str
    status: str
    text: str
    open: bool


@final
@dataclass(frozen=True, slots=True)
class _Stage:
    name: str
    ok: bool


@final
@dataclass(frozen=True, slots=True)
class _Check:
    verdict: Literal["valid", "conditional", "unknown", "invalid"]
    certificate: str
    reasons: tuple[str, ...]
    promise: tuple[str, ...]
    assumptions: tuple[_Assumption, ...]
    steps: tuple[_Stage, ...]


def read_check(document: Mapping[str, object]) -> CheckFacts:
    """What the checker said; `FieldError` where the document is not complete."""
    found = DOCUMENT.read(_Check, document, "check")
    return CheckFacts(
        verdict=found.verdict,
        certificate=found.certificate,
        reasons=found.reasons,
        promise=found.promise,
        ledger=tuple(LedgerEntry(item.id, _status(item), item.text) for item in found.assumptions),
        stages=tuple((item.name, item.ok) for item in found.steps),
    )


def _status(item: _Assumption) -> str:
    if item.status == "checked":
        return item.status
    return "declared" if item.open else "accepted"
