"""Text: a document for a reader at a terminal.

Its first lines are the answers. Strings pass through `safe` and are printed as text, never as
markup. A number is shown completely or not at all, because a bound that lost its last digits would
read as a smaller one. No line is a command of a CI log.
"""

import io
import re
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from lipcert.diagnostics import Level
from lipcert.report import document as doc
from lipcert.text.numbers import NO_BOUND
from lipcert.text.safe import safe, shortened

_COMMAND: Final = re.compile(r"^(\s*)::")  # a word may have been folded in its middle
_DIGITS: Final = 4
_NAME: Final = 36
_INDENT: Final = 2
_GAP: Final = 2
_STYLES: Final = {
    doc.Tone.GOOD: "bold green",
    doc.Tone.BAD: "bold red",
    doc.Tone.OPEN: "bold yellow",
    doc.Tone.PLAIN: "",
    doc.Tone.SUBJECT: "bold",
}
_LEVELS: Final = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan"}


def text(document: doc.Document, *, width: int, color: bool) -> str:
    """Return the whole document, in this many columns."""
    written = io.StringIO()
    console = _canvas(written, width, color)
    for answer in document.answers:
        console.print(Text(safe(answer.text), _STYLES[answer.tone]))
    _print(console, document.facts)
    for section in document.sections:
        console.print()
        if section.title:
            console.print(Text(safe(section.title), "bold"))
        for part in section.parts:
            _print(console, part)
    lines = (_COMMAND.sub(r"\1\\x3a:", line.rstrip()) for line in written.getvalue().splitlines())
    return "\n".join(lines).strip("\n") + "\n"


def _canvas(file: io.StringIO, width: int, color: bool) -> Console:
    """Return a console that writes into memory and interprets no markup."""
    return Console(
        file=file,
        width=max(width, 40),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def _print(console: Console, part: doc.Part) -> None:
    match part:
        case doc.Statements(rows) if rows:
            _print_statements(console, part)
        case doc.Listing(sentences, hidden):
            grid = _grid()
            for sentence in sentences:
                grid.add_row("  -", Text(safe(sentence)))
            console.print(grid)
            _rest(console, hidden)
        case doc.Findings():
            _print_findings(console, part)
        case doc.Table():
            _print_table(console, part)
        case doc.Commands(lines):
            for comment, line in lines:
                if comment:
                    console.print(Text(f"# {safe(comment)}", "dim"))
                console.print(Text(safe(line)), soft_wrap=True)


def _grid(labels: int = 1) -> Grid:
    """Return a grid of labels and a text that wraps next to them."""
    grid = Grid.grid(padding=(0, 2))
    for _ in range(labels):
        grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _print_statements(console: Console, part: doc.Statements) -> None:
    grid = _grid(1 + part.has_status)
    for row in part.rows:
        status = [Text(safe(row.status), _STYLES[row.tone])] if part.has_status else []
        topic = Text(f"  {shortened(row.topic, _NAME)}", "dim")
        grid.add_row(topic, *status, Text(safe(row.text), _STYLES[part.tone]))
    console.print(grid)


def _print_findings(console: Console, part: doc.Findings) -> None:
    grid = _grid()
    for found in part.rows:
        where = f"{safe(found.where)}: " if found.where else ""
        label = Text(f"  {found.level.value} {safe(found.code)}", _LEVELS[found.level])
        grid.add_row(label, Text(f"{where}{safe(found.message)}"))
        if found.remedy:
            grid.add_row("", Text(f"remedy: {safe(found.remedy)}", "dim"))
    console.print(grid)
    _rest(console, part.hidden)


def _rest(console: Console, hidden: int) -> None:
    if hidden > 0:
        console.print(Text(f"  {hidden:,} further rows: --all shows them", "dim"))


def _print_table(console: Console, table: doc.Table) -> None:
    """Print what fits, and one line about the columns that do not."""
    rows = [
        [shortened(doc.cell_text(cell, _DIGITS), _most(column)) for cell, column in pairs]
        for pairs in (zip(row, table.columns, strict=True) for row in table.rows)
    ]
    kept, widths = _fitted(table.columns, rows, console.width)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, width in zip(kept, widths, strict=True):
        column = table.columns[index]
        title = Text(column.title, justify="right" if column.is_number else "left")
        grid.add_column(title, justify=title.justify or "left", no_wrap=True, width=width)
    for row in rows:
        cells = (shortened(row[index], width) for index, width in zip(kept, widths, strict=True))
        grid.add_row(*(Text(cell, "bold red" if cell == NO_BOUND else "") for cell in cells))
    console.print(Padding(grid, (0, 0, 0, _INDENT), expand=False))
    missing = [column.title for i, column in enumerate(table.columns) if i not in kept]
    if missing:
        note = f"  without {', '.join(missing)}: the terminal is too narrow"
        console.print(Text(note, "dim"))
    _rest(console, table.hidden)


def _most(column: doc.Column) -> int:
    return 10**6 if column.is_number else column.most


def _fitted(
    columns: Sequence[doc.Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[int], list[int]]:
    """Return the columns to show and their widths: names are shortened before numbers go."""
    natural = [
        max([len(column.title), *(len(row[i]) for row in rows)]) for i, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while True:
        widths = [natural[i] for i in kept]
        least = [max(columns[i].least, len(columns[i].title)) for i in kept]
        excess = _INDENT + sum(widths) + _GAP * len(kept) - width
        while excess > 0:
            spare = [
                now - low if columns[i].least else 0
                for i, now, low in zip(kept, widths, least, strict=True)
            ]
            if max(spare) <= 0:
                break
            widths[spare.index(max(spare))] -= 1
            excess -= 1
        leaving = max(kept, key=lambda i: columns[i].rank)
        if excess <= 0 or columns[leaving].rank == 0:
            return kept, widths
        kept.remove(leaving)
