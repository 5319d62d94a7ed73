"""Import every ONNX file of a folder and print what became of it.

Usage: `python benchmarks/zoo.py FOLDER`.

With an `index.csv` (columns label and path) in the folder, a summary per label follows.
"""

from __future__ import annotations

import argparse
import csv
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model


@dataclass(frozen=True)
class Row:
    """What became of one file."""

    label: str
    path: str
    outcome: str
    batch: str
    difference: float | None
    seconds: float
    detail: str


def files(folder: Path) -> Iterator[tuple[str, str]]:
    """(label, relative path) of every model."""
    index = folder / "index.csv"
    if index.exists():
        with index.open(newline="") as lines:
            for record in csv.DictReader(lines):
                yield record["label"], record["path"]
        return
    for path in sorted(folder.rglob("*.onnx*")):
        yield "", str(path.relative_to(folder))


def examine(folder: Path, label: str, path: str) -> Row:
    """Import one file."""
    start = time.perf_counter()
    try:
        model = load_model(folder / path)
    except UnsupportedModelError as error:
        codes = "+".join(sorted({refusal.code for refusal in error.refusals}))
        seconds = time.perf_counter() - start
        return Row(label, path, codes, "", None, seconds, str(error))
    except ModelFileError as error:
        return Row(label, path, "file", "", None, time.perf_counter() - start, str(error))
    except Exception:  # noqa: BLE001  a fault of LipCert: to be shown, not to stop the survey
        detail = traceback.format_exc().strip().replace("\n", " | ")
        return Row(label, path, "CRASH", "", None, time.perf_counter() - start, detail[-400:])
    seconds = time.perf_counter() - start
    notes = ",".join(sorted({item.code for item in model.diagnostics}))
    difference = model.verification.max_difference
    return Row(label, path, "imported", model.batch.status.value, difference, seconds, notes)


def main() -> None:
    """Print the table and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--label", default=None, help="only files with this label")
    parser.add_argument("--width", type=int, default=120, help="length of the last column")
    options = parser.parse_args()
    summary: Counter[tuple[str, str]] = Counter()
    for label, path in files(options.folder):
        if options.label not in {None, label}:
            continue
        row = examine(options.folder, label, path)
        difference = "" if row.difference is None else f"{row.difference:.1e}"
        print(
            f"{row.label:7}{row.outcome:13}{row.batch:12}{difference:9}{row.seconds:7.2f} s  "
            f"{row.path[-52:]:53}{row.detail[: options.width]}",
            flush=True,
        )
        summary[row.label, "imported" if row.outcome == "imported" else "refused"] += 1
        if row.outcome == "CRASH":
            summary[row.label, "CRASH"] += 1
    for (label, outcome), count in sorted(summary.items()):
        print(f"{label or 'all':8}{outcome:10}{count:5}")


if __name__ == "__main__":
    main()
