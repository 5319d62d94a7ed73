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
from lipcert.report import document as doc
from lipcert.report.csv import csv_text
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


def privacy_document(report: PrivacyReport) -> doc.Document:
    """The answer, what it rests on, comparisons, curves, findings."""
    account = report.account
    tone = doc.Tone.BAD if account.epsilon is None else doc.Tone.GOOD
    answers = [doc.Answer(privacy_promise(account), tone)]
    if report.solved_for != "epsilon":
        answers.append(doc.Answer(_solution(report), doc.Tone.SUBJECT))
    return doc.Document(
        "LipCert privacy",
        tuple(answers),
        sections=doc.sections_of(
            doc.Section("Statement", (doc.Statements.of(statement_rows(account)),)),
            doc.Section("By other means", (doc.Statements.of(comparison_rows(account)),)),
            *(
                doc.Section(f"ε over {_CURVES[name]}", (_curve(name, points),))
                for name, points in report.curves.items()
            ),
            doc.Section("Diagnostics", (doc.Findings(diagnostics_told(account.diagnostics)),)),
        ),
    )


def _solution(report: PrivacyReport) -> str:
    account = report.account
    if report.solved_for == "steps":
        return f"Largest number of steps: {account.plan.releases}"
    sigma = account.noise_multiplier
    return f"Noise multiplier found: {'none' if sigma is None else f'{sigma:.12g}'}"


def _curve(name: str, points: Sequence[CurvePoint]) -> doc.Ranking:
    largest = max((p.epsilon for p in points if math.isfinite(p.epsilon)), default=1.0) or 1.0
    return doc.Ranking(
        tuple(
            doc.Bar(
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
    rows = [("answer", account.noise_multiplier, account.plan.releases, account.epsilon)]
    for name, points in report.curves.items():
        rows += [(name, point.noise_multiplier, point.steps, point.epsilon) for point in points]
    return csv_text(
        ("row", "noise_multiplier", "steps", "delta", "epsilon"),
        [
            (name, multiplier, str(steps), account.plan.delta, epsilon)
            for name, multiplier, steps, epsilon in rows
        ],
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
