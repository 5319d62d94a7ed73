"""What certificates cost: `python benchmarks/certificates.py [ZOO_DIR]`.

One line for each shipped model, and for each network of at most five million parameters in a
folder with an index (columns path, label, params): seconds of processor time to analyse, certify
and check with either engine, the verdict, the bytes, and how many assumptions are to be accepted.
"""

from __future__ import annotations

import csv
import gzip
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lipcert import Settings, load_model
from lipcert.analysis.certificate import certify
from lipcert.analysis.pipeline import analyze
from lipcert.core.check import Choices, check
from lipcert.errors import LipCertError

T = TypeVar("T")
SHIPPED = Path(__file__).resolve().parents[1] / "models"
LARGEST = 5_000_000


@dataclass(frozen=True)
class Line:
    """One row of the table; seconds and bytes."""

    name: str
    analyse: float
    certify: float
    check_float: float
    check_exact: float
    verdict: str
    size: int
    open: tuple[str, ...]

    def __str__(self) -> str:
        seconds = (self.analyse, self.certify, self.check_float, self.check_exact)
        times = " ".join(f"{value:8.2f}" for value in seconds)
        return f"{self.name[-44:]:44} {times} {self.verdict:>11} {self.size:9d} {len(self.open):4d}"


def models(folder: Path | None) -> Iterator[tuple[str, Path]]:
    """Names and files, packed ones unpacked."""
    for path in sorted(SHIPPED.glob("*.onnx")):
        yield path.name, path
    if folder is None:
        return
    with (folder / "index.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["label"] == "net"]
    with tempfile.TemporaryDirectory() as temporary:
        for row in rows:
            path = folder / row["path"]
            if int(row["params"] or 0) > LARGEST:
                continue
            if path.suffix == ".gz":
                path = Path(temporary) / path.stem
                path.write_bytes(gzip.decompress((folder / row["path"]).read_bytes()))
            yield row["path"], path


def timed(compute: Callable[[], T]) -> tuple[T, float]:
    """A result, and the seconds it took, those of child processes included."""
    start = sum(os.times()[:4])
    return compute(), sum(os.times()[:4]) - start


def measured(name: str, path: Path) -> Line:
    """One model through everything."""
    model, settings = load_model(str(path)), Settings(batch_size=256)
    _, analysing = timed(lambda: analyze(model, settings))
    issued, certifying = timed(lambda: certify(model, settings))
    report, quick = timed(lambda: check(issued.data, path, Choices("float")))
    exact, slow = timed(lambda: check(issued.data, path, Choices("exact")))
    verdicts = {report.verdict.value, exact.verdict.value}
    return Line(
        name,
        analysing,
        certifying,
        quick,
        slow,
        "/".join(sorted(verdicts)),
        len(issued.data),
        report.open_assumptions,
    )


def main(arguments: list[str]) -> None:
    """The table, and what it comes to."""
    columns = " analyse  certify    float    exact     verdict     bytes open"
    print(f"{'model':44} {columns}")
    lines, failed = [], Counter[str]()
    for name, path in models(Path(arguments[0]) if arguments else None):
        try:
            lines.append(measured(name, path))
            print(lines[-1], flush=True)
        except LipCertError as error:
            failed[type(error).__name__] += 1
            print(f"{name[-44:]:44} {type(error).__name__}: {str(error)[:90]}", flush=True)
    print(f"verdicts: {dict(Counter(line.verdict for line in lines))}, none: {dict(failed)}")
    for what, ratios in (
        ("check (float) / analyse", [line.check_float / line.analyse for line in lines]),
        ("check (exact) / analyse", [line.check_exact / line.analyse for line in lines]),
    ):
        print(f"{what}: {max(ratios, default=1.0):.3f} at most")


if __name__ == "__main__":
    main(sys.argv[1:])
