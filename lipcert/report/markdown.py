"""Markdown report: the analysis as GitHub-flavoured Markdown, for pull requests and wikis.

What enters: an analysis. What leaves: Markdown in which every string of the model is inert:
made safe, and each character with a meaning in Markdown or HTML escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lipcert.analysis.records import Analysis, ParameterReport
from lipcert.report import attribution
from lipcert.report.node_rows import node_cells
from lipcert.report.numbers import at_most, percent, shape_text
from lipcert.report.privacy_statement import comparison_rows, privacy_promise, statement_rows
from lipcert.report.repeated import diagnostics_told
from lipcert.report.statements import answer_rows, assumption_rows, headline, promise
from lipcert.safe import safe

_SPECIAL: Final = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~#!&@$:"})


def analysis_markdown(analysis: Analysis) -> str:
    """The whole report."""
    sections = [
        "# LipCert analysis",
        escaped(headline(analysis)),
        f"**{escaped(promise(analysis))}**",
        "## Assumptions",
        table(("", ""), assumption_rows(analysis)),
        "## Answer",
        table(("bound", "value"), answer_rows(analysis)),
        *_privacy(analysis),
        "## Nodes",
        table(
            ("node", "op", "shape", "input", "W", "Lipschitz", "output", "cotangent"),
            [node_cells(node) for node in analysis.nodes],
        ),
        "## Parameters",
        table(
            ("parameter", "shape", "G", "Δ", "noise std", "share of G²", "group"),
            _parameter_rows(analysis),
        ),
    ]
    if analysis.diagnostics:
        sections += ["## Diagnostics", _diagnostics(analysis)]
    return "\n\n".join(sections) + "\n"


def _privacy(analysis: Analysis) -> list[str]:
    account = analysis.privacy
    if account is None:
        return []
    rows = [*statement_rows(account), *comparison_rows(account)]
    return ["## Privacy", f"**{escaped(privacy_promise(account))}**", table(("", ""), rows)]


def _parameter_rows(analysis: Analysis) -> list[tuple[str, ...]]:
    shares = attribution.gradient_shares(analysis)
    return [_parameter_row(item, shares.get(item.name)) for item in analysis.parameters]


def _parameter_row(parameter: ParameterReport, share: float | None) -> tuple[str, ...]:
    name, shape = parameter.name, shape_text(parameter.shape)
    if not parameter.trainable:
        return (name, shape, "frozen", "", "", "", "")
    return (
        name,
        shape,
        at_most(parameter.grad_norm),
        at_most(parameter.sensitivity),
        at_most(parameter.noise_std),
        percent(share),
        parameter.group or "",
    )


def _diagnostics(analysis: Analysis) -> str:
    lines = diagnostics_told(analysis.diagnostics)
    rows = [(*line.label, line.where, line.what, line.remedy) for line in lines]
    return table(("level", "code", "where", "finding", "remedy"), rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the cells are escaped, the header is not."""
    lines = [_line(header), _line(["---"] * len(header))]
    lines += [_line([escaped(cell) for cell in row]) for row in rows]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """A text that means itself, whatever it holds."""
    return safe(text).translate(_SPECIAL)
