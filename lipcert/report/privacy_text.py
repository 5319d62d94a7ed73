"""Privacy text: the account of a run for a person at a terminal, curves drawn as bars.

What enters: a report. What leaves: text whose first line is the answer. Invariant: a displayed ε
is rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lipcert.privacy.calibration import CurvePoint
from lipcert.report.numbers import at_most, bar
from lipcert.report.privacy import PrivacyReport
from lipcert.report.privacy_statement import comparison_rows, privacy_promise, statement_rows
from lipcert.report.text import canvas, diagnostic_lines, text_of, two_columns

_CURVE_TITLES: Final[Mapping[str, str]] = MappingProxyType(
    {"steps": "steps", "noise-multiplier": "σ"}
)


def privacy_text(report: PrivacyReport, *, width: int, color: bool) -> str:
    """For a person at a terminal: the answer, what it rests on, comparisons, curves, findings."""
    account = report.account
    console = canvas(width, color)
    style = "bold red" if account.epsilon is None else "bold green"
    console.print(Text(privacy_promise(account), style))
    if report.solved_for != "epsilon":
        console.print(Text(_solution(report), "bold"))
    _pairs(console, "Statement", statement_rows(account))
    _pairs(console, "By other means", comparison_rows(account))
    for name, points in report.curves.items():
        _curve(console, name, points)
    diagnostic_lines(console, account.diagnostics)
    return text_of(console)


def _solution(report: PrivacyReport) -> str:
    account = report.account
    if report.solved_for == "steps":
        return f"Largest number of steps: {account.plan.releases}"
    sigma = account.noise_multiplier
    return f"Noise multiplier found: {'none' if sigma is None else f'{sigma:.12g}'}"


def _pairs(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    if not rows:
        return
    grid = two_columns()
    for topic, sentence in rows:
        grid.add_row(Text(f"  {topic}", "dim"), Text(sentence))
    console.print()
    console.print(Text(title, "bold"))
    console.print(grid)


def _curve(console: Console, name: str, points: Sequence[CurvePoint]) -> None:
    largest = max((p.epsilon for p in points if math.isfinite(p.epsilon)), default=1.0) or 1.0
    grid = Table.grid(padding=(0, 2))
    for point in points:
        finite = math.isfinite(point.epsilon)
        where = str(point.steps) if name == "steps" else f"{point.noise_multiplier:.6g}"
        length = point.epsilon / largest if finite else 1.0
        grid.add_row(
            Text(f"  {where}", justify="right"),
            Text(at_most(point.epsilon) if finite else "∞", justify="right"),
            Text(bar(length), "magenta"),
        )
    console.print()
    console.print(Text(f"ε over {_CURVE_TITLES[name]}", "bold"))
    console.print(grid)
