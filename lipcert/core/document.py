"""Write a report as JSON, for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from lipcert.core.verdict import Report

if TYPE_CHECKING:
    from lipcert.core.trusted import TrustedFile

SCHEMA: Final = "lipcert.check/1"


def report_json(report: Report, trusted: Sequence[TrustedFile] = ()) -> str:
    """Return a `lipcert.check/1` document; it has a member `trusted_base` if files are given."""
    document: dict[str, object] = {
        "schema": SCHEMA,
        "verdict": report.verdict.value,
        "certificate": report.sha256,
        "reasons": report.reasons,
        "assumptions": [
            asdict(x) | {"open": x.id in report.open_assumptions} for x in report.assumptions
        ],
        "steps": [{"number": x.number, "name": x.name, "ok": not x.reasons} for x in report.stages],
        "notes": report.notes,
        "weights": [
            {"tensor": tensor, "stored_as": name, "own_name": name == tensor}
            for tensor, name in report.weights.items()
        ],
    }
    if trusted:
        from lipcert.core.trusted import dependencies  # noqa: PLC0415  for a list alone

        document["trusted_base"] = {
            "lines": sum(file.lines for file in trusted),
            "files": [asdict(file) for file in trusted],
            "depends_on": dependencies(),
        }
    return json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"
