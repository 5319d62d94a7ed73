"""Planted faults: which part of the audit finds which of them, on a tight and on a loose network.

    python -m benchmarks.audit_faults                    all tables, about five minutes on one core
    python -m benchmarks.audit_faults --section runs     one of: claims, runs

Claims: bounds of shipped networks are made too small, all of a kind at once, and held against
replayed digits and against what the attack proposes; a cell counts the bounds that were caught.
Runs: a small private training run goes wrong in one thing; a cell holds the codes that say so.
`no` is a fault that is not found, `–` one that this part of the audit is not about; codes in
brackets are those of an inconclusive check. docs/audit_faults.md shows what this prints. Leaves
with 1 if a right network or run raises an alarm, or if nothing finds a faulty run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from lipcert.audit.records import Verdict
from tests.audit.faults import CLAIM_FAULTS, SUBJECTS, cells_of, report_of
from tests.audit.faulty_runs import (
    LOOSE_RUN,
    PARTS,
    RIGHT,
    RUN_FAULTS,
    TIGHT_RUN,
    found_by,
)

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; 0 where nothing right is blamed and every faulty run is found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--section", choices=("claims", "runs", "all"), default="all")
    section = parser.parse_args(arguments).section
    start, wrong = time.perf_counter(), 0
    if section in ("claims", "all"):
        wrong += claims_table()
    if section in ("runs", "all"):
        wrong += runs_table()
    sys.stderr.write(f"{time.perf_counter() - start:.0f} s\n")
    return 1 if wrong else 0


def claims_table() -> int:
    """Faults in bounds; returns the number of false alarms."""
    names = [f"{s.name}, {mode}" for s in SUBJECTS for mode in ("data", "attack")]
    line("fault", *(f"`{name.split(',')[0]}`,{name.split(',')[1]}" for name in names))
    line("---", *["---:"] * len(names))
    reports = [report_of(ready) for s in SUBJECTS for ready in (s.right, s.attacked)]
    line("none", *("no" if r.verdict is Verdict.PASS else r.verdict.value for r in reports))
    totals = [(0, 0)] * len(names)
    for fault in CLAIM_FAULTS:
        cells = cells_of(fault)
        totals = [(a + c.found, b + c.wrong) for (a, b), c in zip(totals, cells, strict=True)]
        line(fault.name, *map(str, cells))
    line("**all**", *(f"**{found}/{wrong}**" for found, wrong in totals))
    return sum(report.verdict is not Verdict.PASS for report in reports)


def runs_table() -> int:
    """Faults in runs; returns the number of false alarms and of surprises."""
    wrong = 0
    for run in (TIGHT_RUN, LOOSE_RUN):
        line(f"fault, `{run.subject.name}`", *PARTS)
        line("---", *["---"] * len(PARTS))
        for fault in (RIGHT, *RUN_FAULTS):
            with tempfile.TemporaryDirectory() as folder:
                found = found_by(Path(folder) / "trace", run, fault)
            line(fault.name, *found.cells)
            wrong += bool(found.any) == (fault is RIGHT)
    return wrong


def line(*cells: str) -> None:
    """A row of a table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
