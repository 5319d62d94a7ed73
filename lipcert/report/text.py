"""Text report: the analysis for a person at a terminal.

What enters: an analysis or an inspection, a width, whether to use colour. What leaves: text whose
first lines are the assumptions and the answer. Invariant: strings of the model pass through
`safe` and are printed as text, never as markup; displayed bounds are rounded up.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lipcert.analysis.records import Analysis, NodeReport, ParameterReport
from lipcert.diagnostics import Diagnostic, Level
from lipcert.report import attribution
from lipcert.report.folding import Fold, fold, fold_nodes
from lipcert.report.numbers import NO_BOUND, at_most, bar, percent, shape_text
from lipcert.report.safe import safe, shortened
from lipcert.report.statements import answer_rows, assumption_rows, headline

__all__ = ["analysis_text", "canvas", "diagnostic_lines", "text_of"]

_COMMAND: Final = re.compile(r"^(\s*)::")  # a word may have been folded in its middle
_NAME_WIDTH: Final = 36
_NODE_COLUMNS: Final = (
    "node", "op", "shape", "‖input‖", "‖W‖", "Lipschitz", "‖output‖", "‖cotangent‖",
)  # fmt: skip
_PARAMETER_COLUMNS: Final = ("parameter", "shape", "G", "Δ", "noise std", "share of G²", "group")
_STYLES: Final = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan"}
_Row = TypeVar("_Row")


def analysis_text(analysis: Analysis, *, width: int, color: bool, show_all: bool) -> str:
    """The whole report."""
    console = canvas(width, color)
    console.print(Text(safe(headline(analysis)), "bold"))
    _section(console, "Assumptions")
    _pairs(console, assumption_rows(analysis))
    _section(console, "Answer")
    _pairs(console, answer_rows(analysis), "bold green")
    _section(console, "Nodes, in data-flow order")
    _nodes(console, fold_nodes(analysis.nodes, show_all))
    _section(console, "Parameters")
    _parameters(console, analysis, fold(analysis.parameters, show_all))
    _allocations(console, analysis)
    _losses(console, analysis)
    diagnostic_lines(console, analysis.diagnostics)
    return text_of(console)


def canvas(width: int, color: bool) -> Console:
    """A console that writes into memory and interprets no markup."""
    return Console(
        file=io.StringIO(),
        width=max(width, 40),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def text_of(console: Console) -> str:
    """What was written, without trailing blanks; no line is a command of a CI log."""
    written = console.file
    if not isinstance(written, io.StringIO):
        raise TypeError("the console does not write into memory")
    lines = (_COMMAND.sub(r"\1\\x3a:", line.rstrip()) for line in written.getvalue().splitlines())
    return "\n".join(lines).strip("\n") + "\n"


def diagnostic_lines(console: Console, diagnostics: Sequence[Diagnostic]) -> None:
    """Every diagnostic with its node and remedy; errors first."""
    if not diagnostics:
        return
    _section(console, "Diagnostics")
    order = list(Level)
    for diagnostic in sorted(diagnostics, key=lambda found: order.index(found.level)):
        where = f" {safe(diagnostic.node)}:" if diagnostic.node else ""
        line = Text(f"  {diagnostic.level.value} ", _STYLES[diagnostic.level])
        line.append(f"{diagnostic.code}{where} {safe(diagnostic.message)}", "default")
        console.print(line)
        if diagnostic.remedy:
            console.print(Text(f"    remedy: {safe(diagnostic.remedy)}", "dim"))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Table:
    """A plain table; the first `left` columns are left-aligned."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=True, show_edge=False)
    for index, column in enumerate(columns):
        grid.add_column(
            Text(column),
            justify="left" if index < left else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        grid.add_row(*(_cell(text) for text in row))
    return grid


def _cell(text: str) -> Text:
    return Text(text, "bold red" if text == NO_BOUND else "")


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold"))


def _pairs(console: Console, rows: Sequence[tuple[str, str]], style: str = "") -> None:
    grid = Table.grid(padding=(0, 2), pad_edge=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for topic, sentence in rows:
        grid.add_row(Text(f"  {safe(topic)}", "dim"), Text(safe(sentence), style))
    console.print(grid)


def _nodes(console: Console, folded: Fold[NodeReport]) -> None:
    rows = _with_gap(folded, _node_row, len(_NODE_COLUMNS))
    console.print(table(_NODE_COLUMNS, rows, left=3))
    _note(console, folded.note)


def _node_row(node: NodeReport) -> tuple[str, ...]:
    return (
        shortened(node.name, _NAME_WIDTH),
        shortened(node.op, 20),
        shape_text(node.shape),
        at_most(node.input_norm),
        "" if node.operator_norm is None else at_most(node.operator_norm),
        ", ".join(at_most(bound) for bound in node.input_lipschitz),
        at_most(node.output_norm),
        at_most(node.cotangent_norm),
    )


def _parameters(console: Console, analysis: Analysis, folded: Fold[ParameterReport]) -> None:
    shares = attribution.gradient_shares(analysis)

    def row(parameter: ParameterReport) -> tuple[str, ...]:
        name, shape = shortened(parameter.name, _NAME_WIDTH), shape_text(parameter.shape)
        if not parameter.trainable:
            return (name, shape, "frozen", "", "", "", "")
        return (
            name,
            shape,
            at_most(parameter.grad_norm),
            at_most(parameter.sensitivity),
            at_most(parameter.noise_std),
            percent(shares.get(parameter.name)),
            shortened(parameter.group or "", 24),
        )

    rows = _with_gap(folded, row, len(_PARAMETER_COLUMNS))
    console.print(table(_PARAMETER_COLUMNS, rows, left=2))
    _note(console, folded.note)


def _with_gap(
    folded: Fold[_Row], row: Callable[[_Row], tuple[str, ...]], columns: int
) -> list[tuple[str, ...]]:
    head = [row(item) for item in folded.head]
    tail = [row(item) for item in folded.tail]
    gap = [("…", *[""] * (columns - 1))] if tail else []
    return [*head, *gap, *tail]


def _note(console: Console, note: str) -> None:
    if note:
        console.print(Text(f"  {note}", "dim"))


def _allocations(console: Console, analysis: Analysis) -> None:
    energies = [allocation.noise_energy for allocation in analysis.allocations]
    least = min(energies, default=0.0)
    if least <= 0.0:
        return
    _section(console, "Ways to split the noise, at the same privacy")
    rows = [
        (
            safe(allocation.name) + (" (chosen)" if allocation.chosen else ""),
            at_most(allocation.noise_energy),
            f"{allocation.noise_energy / least:.3g}×",
        )
        for allocation in analysis.allocations
    ]
    console.print(table(("allocation", "noise energy Σ d·s²", "of the least"), rows, left=1))


def _losses(console: Console, analysis: Analysis) -> None:
    for title, shares, as_share in (
        ("Where the bound is lost: largest stretch", attribution.stretches(analysis), False),
        (
            "Where the bound is lost: largest growth of the cotangent",
            attribution.cotangent_jumps(analysis),
            False,
        ),
        ("Largest shares of G²", attribution.largest_gradients(analysis), True),
        ("Largest shares of the noise energy", attribution.noise_shares(analysis), True),
    ):
        if shares:
            _section(console, title)
            _bars(console, shares, as_share)


def _bars(console: Console, shares: Sequence[attribution.Share], as_share: bool) -> None:
    grid = Table.grid(padding=(0, 2), pad_edge=True)
    for share in shares:
        number = percent(share.value) if as_share else f"{at_most(share.value)}×"
        grid.add_row(
            Text(f"  {shortened(share.name, _NAME_WIDTH)}"),
            Text(shortened(share.op, 20), "dim"),
            Text(number, justify="right"),
            Text(bar(share.bar), "magenta"),
        )
    console.print(grid)
