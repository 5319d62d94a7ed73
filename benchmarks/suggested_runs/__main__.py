"""The command line: which networks, at which ε, over how many seeds, and whether the page is
rewritten."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import torch

from benchmarks.reproductions.page import update
from benchmarks.suggested_runs.journal import Journal, chance
from benchmarks.suggested_runs.methods import METHODS
from benchmarks.suggested_runs.problems import PROBLEMS
from benchmarks.suggested_runs.results import (
    accuracy_table,
    cells,
    correlation_table,
    cost_table,
    noise_table,
    recipe_table,
)

__all__ = ["JOURNAL", "ON_PAGE", "main", "tables_of"]

JOURNAL: Final = Path(__file__).parent / "journal.jsonl"
ON_PAGE: Final = ("gain",)
"""the tables that results.md shows; the others are only printed"""
_EPSILONS: Final = (1.0, 3.0, 8.0)
_GAIN: Final = frozenset({"dp-sgd", "suggested"})
"""the methods that tell what a recipe gains"""


def main(arguments: list[str] | None = None) -> int:
    """Make the runs that the journal lacks, and print what it holds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suggested_runs",
        description="Networks as people write them: plain DP-SGD, every mechanism, and `suggest`.",
        epilog=f"networks: {', '.join(PROBLEMS)}; methods: {', '.join(METHODS)}",
    )
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="default: all")
    parser.add_argument("--method", action="append", choices=sorted(METHODS), help="default: all")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="2 or more")
    parser.add_argument("--epsilon", type=float, nargs="+", default=_EPSILONS, metavar="E")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--print", action="store_true", help="make no runs")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="rewrite the tables there")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.networks if name not in PROBLEMS]
    if unknown:
        parser.error(f"no network {unknown[0]!r}; there are {', '.join(PROBLEMS)}")
    if given.seeds < 2:
        parser.error("--seeds: a standard error takes 2 or more")
    torch.set_num_threads(1)  # the networks are too small for more
    journal = Journal(given.journal)
    for method in () if given.print else given.method or METHODS:
        for network in given.networks or PROBLEMS:
            journal.make(PROBLEMS[network], METHODS[method], given.epsilon, range(given.seeds))
            sys.stderr.write(f"{network}, {method}: done\n")
    tables = tables_of(journal)
    for lines in tables.values():
        print("\n".join(lines), end="\n\n")
    if given.update is not None:
        update(given.update, {name: tables[name] for name in ON_PAGE})
    return 0


def tables_of(journal: Journal) -> dict[str, list[str]]:
    """All tables, as lines, by their names."""
    order = {key: number for number, key in enumerate((n, m) for n in PROBLEMS for m in METHODS)}
    runs = sorted(
        journal.reported, key=lambda run: (order[run.network, run.method], run.epsilon, run.seed)
    )
    found = cells(runs)
    chances = {name: chance(problem) for name, problem in PROBLEMS.items()}
    titles = {name: method.title for name, method in METHODS.items()}
    return {
        "gain": list(accuracy_table([cell for cell in found if cell.method in _GAIN], titles)),
        "accuracy": list(accuracy_table(found, titles)),
        "recipes": list(recipe_table(runs, {n: PROBLEMS[n].title for n in PROBLEMS})),
        "correlation": list(correlation_table(runs, found, chances)),
        "cost": list(cost_table(found, chances)),
        "noise": list(noise_table(found, chances)),
    }


if __name__ == "__main__":
    sys.exit(main())
