"""Twin runs for readers, programs and CI: what differed first, and what was compared."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lipcert.audit.records import Verdict
from lipcert.diagnostics import Level
from lipcert.report import document as doc
from lipcert.report.audit_findings import TONES
from lipcert.report.ci import CiReport
from lipcert.report.document import Finding
from lipcert.report.json import dump

if TYPE_CHECKING:
    from lipcert.audit.twins import TwinReport


def twin_document(function: str, report: TwinReport) -> doc.Document:
    """Return a twin run of this function as a document."""
    check = report.check
    why = [] if report.passed else [("what to do", check.remedy)]
    more = doc.Commands(()) if report.passed else doc.explained(check.code)
    members = twin_members(function, report)
    shown = ("steps", "releases", "examples", "neighbours", "seed", "seconds", "compared")
    return doc.Document(
        "LipCert twin run",
        (
            doc.Answer(report.answer, TONES[report.verdict]),
            doc.Answer(function, doc.Tone.SUBJECT),
        ),
        sections=doc.sections_of(
            ("Why", doc.Statements.of(why), more),
            ("What was run", doc.Statements.of(doc.described({x: members[x] for x in shown}))),
        ),
        word=report.verdict.value.upper(),
    )


def twin_members(function: str, report: TwinReport) -> dict[str, Any]:
    """Return the object `lipcert.twin/1` of a twin run."""
    members = asdict(report)
    members["neighbours"] = members.pop("relation").value
    if members["difference"] is not None:
        members["difference"].pop("is_of_sums")
    return {
        "schema": "lipcert.twin/1",
        "function": function,
        "verdict": report.verdict.value,
        **members,
        "largest": report.largest,
    }


def twin_json(function: str, report: TwinReport) -> str:
    """Return the document `lipcert.twin/1` of a twin run."""
    return dump(twin_members(function, report))


def twin_ci(function: str, report: TwinReport) -> CiReport:
    """Return the report of a twin run for CI systems."""
    check = report.check
    finding = Finding(check.code, Level.ERROR, "step", check.where, check.message, check.remedy)
    return CiReport(
        verb="audit",
        file=function.rpartition(":")[0],
        headline=report.answer,
        holds=report.verdict is Verdict.PASS,
        findings=() if report.passed else (finding,),
        properties={
            "verdict": report.verdict.value,
            "function": function,
            "seed": str(report.seed),
            "steps": str(report.steps),
        },
        seconds=report.seconds + sum(item.seconds for item in report.compared),
    )
