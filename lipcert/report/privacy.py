"""Privacy reports for programs: `lipcert.privacy/1` and CSV, from an account and curves of ε.

What enters: an account, points of curves. What leaves: finished text with numbers in full
precision; null or an empty field stands for "no finite ε".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from lipcert.privacy.account import Account
from lipcert.privacy.calibration import CurvePoint
from lipcert.report.json import diagnostic_list, dump
from lipcert.report.privacy_object import privacy_object


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
