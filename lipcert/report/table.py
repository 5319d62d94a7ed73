"""Tables that fit: names give way before numbers, and columns leave as a whole.

What enters: columns, rows of raw text, and the width there is. What leaves: a table for the
console, and the titles of the columns that found no room. Invariant: a number is shown in full or
not at all, because a bound that lost its last digits would read as a smaller one; every cell
passes through `safe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lipcert.report.numbers import NO_BOUND
from lipcert.safe import safe, shortened

_INDENT: Final = 2
_GAP: Final = 2

Row = Sequence[str]


@final
@dataclass(frozen=True, slots=True)
class Column:
    """A column of names (left) or numbers (right).

    least: a name may be shortened to this width; 0: never. rank: the column with the highest rank
    leaves first where the width does not suffice; 0: it stays.
    """

    title: str
    right: bool = False
    least: int = 0
    rank: int = 0


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print what fits, and one line about the columns that do not."""
    kept, widths = _fitted(columns, rows, console.width)
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, width in zip(kept, widths, strict=True):
        column = columns[index]
        grid.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=True,
            width=width,
        )
    for row in rows:
        cells = (shortened(row[index], width) for index, width in zip(kept, widths, strict=True))
        grid.add_row(*(Text(cell, "bold red" if cell == NO_BOUND else "") for cell in cells))
    console.print(Padding(grid, (0, 0, 0, _INDENT), expand=False))
    missing = [column.title for i, column in enumerate(columns) if i not in kept]
    if missing:
        note = f"  without {', '.join(missing)}: the terminal is too narrow"
        console.print(Text(note, "dim"))


def _fitted(
    columns: Sequence[Column], rows: Sequence[Row], width: int
) -> tuple[list[int], list[int]]:
    """The columns to show and their widths."""
    natural = [
        max([len(column.title), *(len(safe(row[i])) for row in rows)])
        for i, column in enumerate(columns)
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
