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

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lipcert.analysis.records import Analysis, NodeReport, ParameterReport
from lipcert.diagnostics import Diagnostic, Level
from lipcert.report import attribution
from lipcert.report.folding import Fold, fold, fold_nodes
from lipcert.report.numbers import at_most, bar, percent, shape_text
from lipcert.report.privacy_statement import comparison_rows, privacy_promise, statement_rows
from lipcert.report.repeated import diagnostics_told
from lipcert.report.statements import answer_rows, assumption_rows, headline, promise
from lipcert.report.table import Column, print_table
from lipcert.safe import safe, shortened

_COMMAND: Final = re.compile(r"^(\s*)::")  # a word may have been folded in its middle
_NAME_WIDTH: Final = 36
_DIGITS: Final = 4
_NODE_COLUMNS: Final = (
    Column("node", least=15),
    Column("op", least=11, rank=3),
    Column("shape", rank=4),
    Column("‖input‖", right=True, rank=5),
    Column("‖W‖", right=True, rank=2),
    Column("Lipschitz", right=True),
    Column("‖output‖", right=True, rank=1),
    Column("‖cotangent‖", right=True),
)
_PARAMETER_COLUMNS: Final = (
    Column("parameter", least=20),
    Column("shape", rank=4),
    Column("G", right=True),
    Column("Δ", right=True, rank=1),
    Column("noise std", right=True, rank=2),
    Column("of G²", right=True, rank=3),
    Column("group", least=10, rank=5),
)
_ALLOCATION_COLUMNS: Final = (
    Column("allocation"),
    Column("noise energy Σ d·s²", right=True),
    Column("relative", right=True),
)
_STYLES: Final = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan"}
_Row = TypeVar("_Row")


def analysis_text(analysis: Analysis, *, width: int, color: bool, show_all: bool) -> str:
    """The whole report."""
    console = canvas(width, color)
    console.print(Text(safe(headline(analysis)), "bold"))
    console.print(Text(safe(promise(analysis)), _promise_style(analysis)))
    if analysis.privacy is not None:
        console.print(Text(privacy_promise(analysis.privacy), _promise_style(analysis)))
    _section(console, "Assumptions")
    _pairs(console, assumption_rows(analysis))
    _section(console, "Answer (every norm is a 2-norm)")
    _pairs(console, answer_rows(analysis), "bold green")
    if analysis.privacy is not None:
        _section(console, "Privacy of the run")
        _pairs(console, [*statement_rows(analysis.privacy), *comparison_rows(analysis.privacy)])
    _section(console, "Nodes, in data-flow order")
    _nodes(console, fold_nodes(analysis.nodes, show_all))
    _section(console, "Parameters")
    _parameters(console, analysis, fold(analysis.parameters, show_all))
    _allocations(console, analysis)
    _losses(console, analysis, fold(analysis.parameters, show_all).note)
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
    """Every diagnostic with its node and remedy, repeated ones once; errors first."""
    if not diagnostics:
        return
    _section(console, "Diagnostics")
    grid = two_columns()
    for line in diagnostics_told(diagnostics):
        level, code = line.label
        where = f"{safe(line.where)}: " if line.where else ""
        grid.add_row(
            Text(f"  {level} {code}", _STYLES[Level(level)]), Text(f"{where}{safe(line.what)}")
        )
        if line.remedy:
            grid.add_row("", Text(f"remedy: {safe(line.remedy)}", "dim"))
    console.print(grid)


def two_columns() -> Table:
    """A grid of a label and a text that wraps beside it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _promise_style(analysis: Analysis) -> str:
    return "bold red" if analysis.network.sensitivity is None else "bold green"


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold"))


def _pairs(console: Console, rows: Sequence[tuple[str, str]], style: str = "") -> None:
    grid = two_columns()
    for topic, sentence in rows:
        grid.add_row(Text(f"  {safe(topic)}", "dim"), Text(safe(sentence), style))
    console.print(grid)


def _nodes(console: Console, folded: Fold[NodeReport]) -> None:
    print_table(console, _NODE_COLUMNS, _with_gap(folded, _node_row, len(_NODE_COLUMNS)))
    _note(console, folded.note)


def _node_row(node: NodeReport) -> tuple[str, ...]:
    return (
        shortened(node.name, _NAME_WIDTH),
        shortened(node.op, 20),
        shape_text(node.shape),
        at_most(node.input_norm, _DIGITS),
        "" if node.operator_norm is None else at_most(node.operator_norm, _DIGITS),
        ", ".join(at_most(bound, _DIGITS) for bound in node.input_lipschitz),
        at_most(node.output_norm, _DIGITS),
        at_most(node.cotangent_norm, _DIGITS),
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
            at_most(parameter.grad_norm, _DIGITS),
            at_most(parameter.sensitivity, _DIGITS),
            at_most(parameter.noise_std, _DIGITS),
            percent(shares.get(parameter.name)),
            shortened(parameter.group or "", 24),
        )

    rows = _with_gap(folded, row, len(_PARAMETER_COLUMNS))
    print_table(console, _PARAMETER_COLUMNS, rows)
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
            allocation.name + (" (chosen)" if allocation.chosen else ""),
            at_most(allocation.noise_energy),
            f"{allocation.noise_energy / least:.3g}×",
        )
        for allocation in analysis.allocations
    ]
    print_table(console, _ALLOCATION_COLUMNS, rows)


def _losses(console: Console, analysis: Analysis, hidden: str) -> None:
    """Rankings; that of G² only where the table of parameters does not show it all."""
    largest = attribution.largest_gradients(analysis) if hidden else []
    for title, shares, as_share in (
        ("Where the bound is lost: largest stretch", attribution.stretches(analysis), False),
        ("Largest shares of G²", largest, True),
        ("Largest shares of the noise energy", attribution.noise_shares(analysis), True),
    ):
        if shares:
            _section(console, title)
            _bars(console, shares, as_share)


def _bars(console: Console, shares: Sequence[attribution.Share], as_share: bool) -> None:
    grid = Table.grid(padding=(0, 2))
    for share in shares:
        number = percent(share.value) if as_share else f"{at_most(share.value)}×"
        grid.add_row(
            Text(f"  {shortened(share.name, _NAME_WIDTH)}"),
            Text(shortened(share.op, 20), "dim"),
            Text(number, justify="right"),
            Text(bar(share.bar), "magenta"),
        )
    console.print(grid)
