"""Import and analyse every ONNX file of a folder and print what became of it.

Usage: `python benchmarks/zoo.py FOLDER`.

The analysis uses the default settings: inputs in [0, 1], the weights of the file, the loss that
fits the output. With an `index.csv` (columns label and path) in the folder, a summary per label
follows.
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

from lipcert.analysis.pipeline import analyze
from lipcert.errors import LipCertError, ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.importer.model import ImportedModel
from lipcert.settings.settings import Settings


@dataclass(frozen=True)
class Row:
    """What became of one file."""

    label: str
    path: str
    outcome: str
    seconds: float
    batch: str = ""
    difference: float | None = None
    detail: str = ""
    bounds: str = ""
    grade: str = ""


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


def examine(folder: Path, label: str, path: str, *, bound: bool) -> Row:
    """Import one file and bound its gradients."""
    start = time.perf_counter()
    try:
        model = load_model(folder / path, trusted=True)
        difference = model.verification.max_difference
        bounds, grade, detail = bounded(model) if bound else ("", "", "")
    except UnsupportedModelError as error:
        codes = "+".join(sorted({refusal.code for refusal in error.refusals}))
        return Row(label, path, codes, time.perf_counter() - start, detail=str(error))
    except ModelFileError as error:
        return Row(label, path, "file", time.perf_counter() - start, detail=str(error))
    except Exception:  # noqa: BLE001  a fault of LipCert: to be shown, not to stop the survey
        detail = traceback.format_exc().strip().replace("\n", " | ")[-400:]
        return Row(label, path, "CRASH", time.perf_counter() - start, detail=detail)
    seconds = time.perf_counter() - start
    notes = ",".join(sorted({item.code for item in model.diagnostics}))
    return Row(
        label,
        path,
        "imported",
        seconds,
        model.batch.status.value,
        difference,
        f"{notes} {detail}",
        bounds,
        grade,
    )


def bounded(model: ImportedModel) -> tuple[str, str, str]:
    """Lipschitz constant and gradient norm of the network; how complete; the first obstacle."""
    try:
        analysis = analyze(model, Settings(as_exported=True))
    except LipCertError as error:
        return "", "no analysis", str(error)
    network = analysis.network
    lost = [node for node in analysis.nodes if node.reason]
    reasons = [item.message for item in analysis.diagnostics if item.code in {"LC101", "LC102"}]
    shown = f"L {number(network.lipschitz)}  G {number(network.grad_norm)}"
    detail = f"{len(lost)} of {len(analysis.nodes)} nodes unbounded; " if lost else ""
    detail += reasons[0] if reasons else ""
    if network.grad_norm is not None:
        return (
            shown,
            "bounded" if any(p.trainable for p in analysis.parameters) else "untrained",
            detail,
        )
    return shown, "Lipschitz only" if network.lipschitz is not None else "unbounded", detail


def number(value: float | None) -> str:
    """Three digits, or a dash for no bound."""
    return f"{'-':9}" if value is None else f"{value:<9.3g}"


def main() -> None:
    """Print the table and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--label", default=None, help="only files with this label")
    parser.add_argument("--match", default="", help="only files whose path holds this")
    parser.add_argument("--width", type=int, default=120, help="length of the last column")
    parser.add_argument("--import-only", action="store_true", help="no analysis")
    options = parser.parse_args()
    summary: Counter[tuple[str, str]] = Counter()
    for label, path in files(options.folder):
        if options.label not in {None, label} or options.match not in path:
            continue
        row = examine(options.folder, label, path, bound=not options.import_only)
        difference = "" if row.difference is None else f"{row.difference:.1e}"
        print(
            f"{row.label:7}{row.outcome:13}{row.batch:12}{difference:9}{row.bounds:26}"
            f"{row.seconds:7.2f} s  {row.path[-52:]:53}{row.detail[: options.width]}",
            flush=True,
        )
        summary[row.label, "imported" if row.outcome == "imported" else "refused"] += 1
        if row.outcome == "CRASH":
            summary[row.label, "CRASH"] += 1
        if row.grade:
            summary[row.label, f"  {row.grade}"] += 1
    for (label, outcome), count in sorted(summary.items()):
        print(f"{label or 'all':8}{outcome:18}{count:5}")


if __name__ == "__main__":
    main()
