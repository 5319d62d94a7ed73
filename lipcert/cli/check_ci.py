"""The report of a check as test cases and findings, for JUnit, SARIF and GitHub.

What enters: a report of the checker and the certificate's path. What leaves: a `CiReport` with a
case for the verdict, for each stage and for each assumption. Invariant: the case of the verdict
passes for VALID alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from lipcert.core.verdict import STAGES, Report, Verdict
from lipcert.diagnostics import CODES, Level
from lipcert.report.ci import Case, CiReport, Finding, Outcome
from lipcert.report.gates import gate_cases, gate_findings, gate_sentence
from lipcert.settings.gates import GateOutcome, GateResult, worst_of

_ASSUMED: Final = "LC208"
_OUTCOMES: Final = {
    Verdict.VALID: Outcome.PASSED,
    Verdict.CONDITIONAL: Outcome.ERROR,
    Verdict.UNKNOWN: Outcome.ERROR,
    Verdict.INVALID: Outcome.FAILED,
}
_HEADLINES: Final = {
    Verdict.VALID: "valid: everything claimed is proved",
    Verdict.CONDITIONAL: "conditional: assumptions are neither checked nor accepted",
    Verdict.UNKNOWN: "unknown: the checker cannot tell",
    Verdict.INVALID: "invalid: what is claimed does not follow",
}


def check_ci(report: Report, certificate: Path, gates: Sequence[GateResult] = ()) -> CiReport:
    """What CI systems show of a check."""
    over = [gate_sentence(item) for item in gates if item.outcome is not GateOutcome.HOLDS]
    is_within = worst_of(gates) is GateOutcome.HOLDS
    return CiReport(
        verb="check",
        file=str(certificate),
        headline="; ".join([_HEADLINES[report.verdict], *over]),
        holds=report.verdict is Verdict.VALID and is_within,
        findings=(*_findings(report), *gate_findings(gates)),
        cases=(*_cases(report), *gate_cases(gates)),
        properties={"verdict": report.verdict.value, "certificate_sha256": report.sha256},
    )


def _findings(report: Report) -> Iterator[Finding]:
    found = False
    for stage in report.stages:
        for reason in stage.reasons:
            found = True
            code = stage.code if stage.code in CODES else _ASSUMED
            yield Finding(code, Level.ERROR, "stage", stage.name, reason, quantity=reason)
    for name in report.open_assumptions:
        found = True
        text = f"assumption {name} is neither checked nor accepted"
        remedy = f"check it, then --accept-assumption {name}"
        yield Finding(_ASSUMED, Level.ERROR, "assumption", name, text, remedy)
    if report.verdict is not Verdict.VALID and not found:
        yield Finding(_ASSUMED, Level.ERROR, "certificate", "", _HEADLINES[report.verdict])


def _cases(report: Report) -> Iterator[Case]:
    outcome = _OUTCOMES[report.verdict]
    reason = report.reasons[0] if report.reasons else _HEADLINES[report.verdict]
    yield Case("run", "verdict", outcome, reason)
    failed = Outcome.FAILED if report.verdict is Verdict.INVALID else Outcome.ERROR
    for number, name in enumerate(STAGES):
        stage = next((stage for stage in report.stages if stage.number == number), None)
        if stage is None:
            yield Case("stages", name, Outcome.SKIPPED, "not reached")
        elif stage.reasons:
            yield Case("stages", name, failed, "; ".join(stage.reasons), stage.code)
        else:
            yield Case("stages", name, Outcome.PASSED)
    for item in report.assumptions:
        is_open = item.id in report.open_assumptions
        outcome = Outcome.ERROR if is_open else Outcome.PASSED
        yield Case("assumptions", item.id, outcome, item.text if is_open else "")
