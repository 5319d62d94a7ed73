"""The account of a run, as a document for people and as `lipcert.privacy/1` and CSV for programs.

What enters: an account, points of curves. What leaves: a `Document` whose first line is the answer
and in which an ε is rounded up, or text with numbers in full precision; there null or an empty
field stands for "no finite ε".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from lipcert.privacy.account import Account
from lipcert.privacy.calibration import CurvePoint
from lipcert.report.document import (
    Answer,
    Bar,
    Document,
    Findings,
    Ranking,
    Section,
    Statements,
    Tone,
    sections_of,
)
from lipcert.report.json import diagnostic_list, dump
from lipcert.report.numbers import at_most
from lipcert.report.privacy_object import privacy_object
from lipcert.report.privacy_statement import comparison_rows, privacy_promise, statement_rows
from lipcert.report.repeated import diagnostics_told

_CURVES: Final[Mapping[str, str]] = {"steps": "steps", "noise-multiplier": "σ"}


@final
@dataclass(frozen=True, slots=True)
class PrivacyReport:
    """An account, which of its numbers was asked for, and curves by what varies.

    allocation: how the noise is split among groups; None where nobody said.
    """

    account: Account
    solved_for: str
    allocation: str | None
    curves: Mapping[str, Sequence[CurvePoint]]


def privacy_document(report: PrivacyReport) -> Document:
    """The answer, what it rests on, comparisons, curves, findings."""
    account = report.account
    tone = Tone.BAD if account.epsilon is None else Tone.GOOD
    answers = [Answer(privacy_promise(account), tone)]
    if report.solved_for != "epsilon":
        answers.append(Answer(_solution(report), Tone.SUBJECT))
    return Document(
        "LipCert privacy",
        tuple(answers),
        sections=sections_of(
            Section("Statement", (Statements.of(statement_rows(account)),)),
            Section("By other means", (Statements.of(comparison_rows(account)),)),
            *(
                Section(f"ε over {_CURVES[name]}", (_curve(name, points),))
                for name, points in report.curves.items()
            ),
            Section("Diagnostics", (Findings(diagnostics_told(account.diagnostics)),)),
        ),
    )


def _solution(report: PrivacyReport) -> str:
    account = report.account
    if report.solved_for == "steps":
        return f"Largest number of steps: {account.plan.releases}"
    sigma = account.noise_multiplier
    return f"Noise multiplier found: {'none' if sigma is None else f'{sigma:.12g}'}"


def _curve(name: str, points: Sequence[CurvePoint]) -> Ranking:
    largest = max((p.epsilon for p in points if math.isfinite(p.epsilon)), default=1.0) or 1.0
    return Ranking(
        tuple(
            Bar(
                str(point.steps) if name == "steps" else f"{point.noise_multiplier:.6g}",
                at_most(point.epsilon) if math.isfinite(point.epsilon) else "∞",
                min(point.epsilon / largest, 1.0),
            )
            for point in points
        )
    )


def privacy_json(report: PrivacyReport) -> str:
    """`lipcert.privacy/1`."""
    return dump(
        {
            "schema": "lipcert.privacy/1",
            "solved_for": report.solved_for,
            "privacy": privacy_object(report.account, report.allocation),
            "curves": {
                name: [
                    {
                        "noise_multiplier": point.noise_multiplier,
                        "steps": point.steps,
                        "epsilon": _finite(point.epsilon),
                    }
                    for point in points
                ]
                for name, points in report.curves.items()
            },
            "diagnostics": diagnostic_list(report.account.diagnostics),
        }
    )


def privacy_csv(report: PrivacyReport) -> str:
    """The answer as the first row, then the points of the curves."""
    account = report.account
    lines = ["row,noise_multiplier,steps,delta,epsilon"]
    sigma = account.noise_multiplier
    rows = [("answer", sigma, account.plan.releases, account.epsilon)]
    for name, points in report.curves.items():
        rows += [(name, point.noise_multiplier, point.steps, point.epsilon) for point in points]
    for name, multiplier, steps, epsilon in rows:
        cells = (name, _cell(multiplier), str(steps), repr(account.plan.delta), _cell(epsilon))
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cell(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else repr(value)
