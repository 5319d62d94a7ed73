"""CSV: one table for spreadsheets and scripts.

What enters: titles and rows. What leaves: RFC 4180 text; numbers in full precision, an empty field
for "no bound" and for what is infinite. Names are made safe, and one that a spreadsheet would take
for a formula starts with an apostrophe.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

from lipcert.text.safe import safe


def csv_text(titles: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> str:
    """The table; integers are written as words."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([_field(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _field(cell: str | float | None) -> str:
    if isinstance(cell, str):
        text = safe(cell)
        return f"'{text}" if text.lstrip()[:1] in {"=", "+", "-", "@"} else text
    return "" if cell is None or not math.isfinite(cell) else repr(float(cell))
