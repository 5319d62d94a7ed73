"""The command line: which parts, and whether the page is rewritten."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.reproductions.page import update
from benchmarks.reproductions.parts import PARTS
from benchmarks.reproductions.rows import table

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Print the tables of the parts, each line as soon as it is measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproductions",
        description="Numbers that the papers print, measured again.",
        epilog="; ".join(
            f"{part.name}: {part.paper} ({part.duration or 'seconds'})" for part in PARTS.values()
        ),
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: the quick ones")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="rewrite these tables there")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    chosen = given.parts or [name for name, part in PARTS.items() if part.is_quick]
    tables = {name: printed(name) for name in chosen}
    if given.update is not None:
        update(given.update, tables)
    return 0


def printed(name: str) -> list[str]:
    """The lines of a table, which are printed on the way."""
    start = time.perf_counter()
    print(f"\n{PARTS[name].name}: {PARTS[name].paper}\n", flush=True)
    lines = []
    for line in table(PARTS[name].rows()):
        print(line, flush=True)
        lines.append(line)
    sys.stderr.write(f"{time.perf_counter() - start:.0f} s\n")
    return lines


if __name__ == "__main__":
    sys.exit(main())
