"""An audit as test cases and findings, for JUnit, SARIF and GitHub.

What enters: an audit. What leaves: a `CiReport` with one case for the verdict, one for the units
of work, and one for each group, value and check. Invariant: the case of the verdict passes for a
pass alone, so that no format can show another audit in green.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lipcert.audit.records import AuditReport, Verdict
from lipcert.report.audit_findings import audit_findings
from lipcert.report.audit_held import Held, held_items
from lipcert.report.audit_statements import answer, meaning
from lipcert.report.ci import Case, CiReport, Finding, Outcome

_OUTCOMES: Final = {
    Verdict.PASS: Outcome.PASSED,
    Verdict.VIOLATION: Outcome.FAILED,
    Verdict.INCONCLUSIVE: Outcome.ERROR,
    Verdict.MISMATCH: Outcome.ERROR,
}


def audit_ci(report: AuditReport) -> CiReport:
    """What CI systems show of an audit."""
    findings = audit_findings(report)
    return CiReport(
        verb="audit",
        file=report.model,
        headline=f"{answer(report)} {meaning(report)}",
        holds=report.verdict is Verdict.PASS,
        findings=findings,
        cases=(*_run(report, findings), *_bounded(report, findings), *_checks(report)),
        properties={
            "verdict": report.verdict.value,
            "examples": str(report.examples),
            "model_sha256": report.model_sha256,
            "bounds_from": report.bounds_from,
            "device": report.device,
            "dtype": report.dtype,
        },
        seconds=report.seconds,
    )


def _run(report: AuditReport, findings: tuple[Finding, ...]) -> Iterator[Case]:
    outcome, errors = _OUTCOMES[report.verdict], [f for f in findings if f.kind == "audit"]
    reason = report.reasons[0] if report.reasons else ""
    first = findings[0] if findings else None
    code = first.code if first and outcome is not Outcome.PASSED else ""
    text = reason or (first.message if first else "") or answer(report)
    yield Case("run", "verdict", outcome, text, code)
    lost = next((finding for finding in errors if finding.code == "LC318"), None)
    done = report.units_done >= report.units
    outcome = Outcome.PASSED if done else Outcome.ERROR
    yield Case("run", "units", outcome, lost.message if lost else "", "LC318")
    for finding in errors:
        if finding is not lost:
            yield Case("run", finding.code, Outcome.ERROR, finding.message, finding.code)


def _bounded(report: AuditReport, findings: tuple[Finding, ...]) -> Iterator[Case]:
    told = {(f.kind, f.place, f.quantity): f for f in reversed(findings)}
    for item in held_items(report):
        suite, name = ("groups", item.place) if item.kind == "group" else ("values", item.subject)
        finding = told.get((item.kind, item.place, item.quantity))
        yield _case(suite, name, item, finding)


def _case(suite: str, name: str, item: Held, finding: Finding | None) -> Case:
    """Without a bound, or tried by no example, neither right nor wrong: skipped."""
    message, code = (finding.message, finding.code) if finding else ("", "")
    if item.violations:
        return Case(suite, name, Outcome.FAILED, message, code)
    if item.undecided:
        return Case(suite, name, Outcome.ERROR, message, code)
    if item.bound is None:
        return Case(suite, name, Outcome.SKIPPED, message or "no bound to hold", code)
    if item.norm is None:
        return Case(suite, name, Outcome.SKIPPED, message or "not tried", code)
    return Case(suite, name, Outcome.PASSED)


def _checks(report: AuditReport) -> Iterator[Case]:
    for check in report.checks:
        name = f"{check.name}: {check.where}" if check.where else check.name
        yield Case("checks", name, _OUTCOMES[check.verdict], check.message, check.code)
