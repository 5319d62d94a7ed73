"""Page: tables of results.md, replaced by what was just measured.

What enters: a page whose tables stand between `<!-- table: NAME -->` and `<!-- end -->`. What
leaves: the same page with the tables given; all other text is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["table_of", "update"]

END: Final = "<!-- end -->"


def _start(name: str) -> str:
    return f"<!-- table: {name} -->\n"


def table_of(page: Path, name: str) -> str:
    """The table of a part; KeyError where the page has none."""
    _, found, rest = page.read_text(encoding="utf-8").partition(_start(name))
    if not found:
        raise KeyError(f"{page} has no table {name!r}")
    return rest.split(END)[0]


def update(page: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Write these tables, given as lines, into the page."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        before = table_of(page, name)
        after = "".join(f"{line}\n" for line in lines)
        text = text.replace(f"{_start(name)}{before}{END}", f"{_start(name)}{after}{END}")
    page.write_text(text, encoding="utf-8")
