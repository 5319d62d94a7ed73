"""The command line: which rows, over how many seeds, and whether results and page are rewritten."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch

from benchmarks.digits_gap.ladder import ROWS, TABLES
from benchmarks.digits_gap.runs import Measured, measured
from benchmarks.digits_gap.table import line, parsed, short_table, table
from benchmarks.reproductions.page import table_of, update

__all__ = ["PAGE", "RESULTS", "main", "on_page"]

RESULTS: Final = Path(__file__).with_name("results.md")
PAGE: Final = Path(__file__).with_name("page.md")
_SEEDS: Final = 20


def main(arguments: list[str] | None = None) -> int:
    """Print each row as soon as it is measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.digits_gap",
        description="Accuracy of private training on small digits, row by row.",
        epilog=f"rows: {', '.join(ROWS)}",
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: all")
    parser.add_argument("--seeds", type=int, default=_SEEDS, metavar="N", help="2 or more")
    parser.add_argument("--update", action="store_true", help="rewrite these rows on the pages")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.rows if name not in ROWS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    if given.seeds < 2:
        parser.error("--seeds: a standard error takes 2 or more")
    torch.set_num_threads(1)  # the networks are too small for more
    results = dict(on_page(RESULTS) if given.update else {})
    for name, found in _measured(given.rows or list(ROWS), given.seeds):
        results[name] = found
        print(line(ROWS[name], results), flush=True)
        if given.update:
            update(RESULTS, {key: list(table(rows, results)) for key, rows in TABLES.items()})
            update(PAGE, {key: list(short_table(rows, results)) for key, rows in TABLES.items()})
    return 0


def on_page(page: Path) -> Mapping[str, Measured]:
    """What a page with whole rows says of every row."""
    return {name: found for key in TABLES for name, found in parsed(table_of(page, key)).items()}


def _measured(names: list[str], seeds: int) -> Iterator[tuple[str, Measured]]:
    for name in names:
        start = time.perf_counter()
        yield name, measured(ROWS[name], range(seeds))
        sys.stderr.write(f"{name}: {time.perf_counter() - start:.0f} s\n")


if __name__ == "__main__":
    sys.exit(main())
