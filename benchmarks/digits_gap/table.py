"""Table: rows with what was measured, as `results.md` and the page show them.

What enters: measurements, fresh or read from the page. What leaves: lines of Markdown. Invariant: a
table that was read and written again is the same, so the page can be held against the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmarks.digits_gap.rows import Row
from benchmarks.digits_gap.runs import Measured, Spent

__all__ = ["line", "parsed", "short_table", "table"]

_HEAD: Final = (
    "| row | inputs | network | mechanism | optimizer | σ | ε | seeds | accuracy | step |",
    "|---|---|---|---|---|---:|---:|---:|---:|---|",
)
_SHORT_HEAD: Final = (
    "| row | inputs | network | accuracy | step |",
    "|---|---|---|---:|---|",
)
_NOTHING: Final = "–"


def table(rows: Sequence[Row], results: Mapping[str, Measured]) -> Iterator[str]:
    """The lines of the rows that have a result."""
    yield from _HEAD
    for row in rows:
        if row.name in results:
            yield line(row, results)


def line(row: Row, results: Mapping[str, Measured]) -> str:
    """Of a row that has a result."""
    found = results[row.name]
    spent = found.spent
    cells = (
        *row.cells,
        _NOTHING if spent is None else f"{spent.noise_multiplier:.4f}",
        "∞" if spent is None else f"{math.ceil(spent.epsilon * 1e4 - 1e-6) / 1e4:.4f}",
        f"{found.seeds}",
        _accuracy(found),
        _step(row, results),
    )
    return f"| {' | '.join(cells)} |"


def _accuracy(found: Measured) -> str:
    return f"{found.accuracy:.4f} ± {found.error:.4f}"


def short_table(rows: Sequence[Row], results: Mapping[str, Measured]) -> Iterator[str]:
    """The same rows without their recipes."""
    yield from _SHORT_HEAD
    for row in rows:
        if row.name in results:
            name, inputs, network = row.cells[:3]
            cells = (name, inputs, network, _accuracy(results[row.name]), _step(row, results))
            yield f"| {' | '.join(cells)} |"


def parsed(text: str) -> Mapping[str, Measured]:
    """Measurements by row, from the lines of a table."""
    lines = [found for found in text.splitlines() if found.startswith("| `")]
    return dict(map(_parsed_line, lines))


def _step(row: Row, results: Mapping[str, Measured]) -> str:
    """What the row has more than the one it is compared with."""
    if row.before is None or row.before not in results:
        return _NOTHING
    found, before = results[row.name], results[row.before]
    error = math.hypot(found.error, before.error)
    return f"{found.accuracy - before.accuracy:+.4f} ± {error:.4f} on `{row.before}`"


def _parsed_line(text: str) -> tuple[str, Measured]:
    cells = [cell.strip() for cell in text.strip("|").split(" | ")]
    sigma, epsilon, seeds, accuracy = cells[-5:-1]
    mean, error = accuracy.split(" ± ")
    spent = None if sigma == _NOTHING else Spent(float(sigma), float(epsilon))
    return cells[0].strip("`"), Measured(float(mean), float(error), int(seeds), spent)
