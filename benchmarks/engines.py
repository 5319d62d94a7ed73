"""The exact engine against the float engine, on certificates of real files.

    python -m benchmarks.engines KEPT                    goldens and shipped models
    python -m benchmarks.engines KEPT --zoo FOLDER       and all files of a zoo

Both engines check every certificate, and every norm in it is asked of both: as it is stated, and
below that. Where one engine proves a norm, the other has to prove it too, up to what integers leave
unexplained; the least bound of every other line must be the same to the last bit. Certificates are
issued into KEPT, where the rows of the table are written as they are found, so that a run that was
stopped goes on. Leaves with 1 where there is a disagreement.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.kept_certificates import Kept, goldens, shipped, within, zoo
from lipcert.core.certificate import Certificate, read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.line import NotProved
from lipcert.core.lines.norms import NormLine
from lipcert.core.lines.proof import Proof
from lipcert.core.norms import ENGINES
from lipcert.core.verdict import Report
from tests.core.mutants.tight import proof_of

FACTORS: Final = (1.0, 1.0 - 2.0**-24, 1.0 - 2.0**-16, 1.0 - 2.0**-8, 0.5)
"""of norms that both engines are asked about"""
SLACK: Final = 1.0 + 2.0**-30
"""how much larger a norm may have to be for the other engine"""


def main(arguments: list[str] | None = None) -> int:
    """Print what was compared; 1 where the engines disagree."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines")
    parser.add_argument("kept", type=Path)
    parser.add_argument("--zoo", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of a processor, for each certificate"
    )
    options = parser.parse_args(arguments)
    options.kept.mkdir(parents=True, exist_ok=True)
    lines = options.kept / "engines.jsonl"
    done = {row["name"]: row for row in _rows(lines)}
    for item in _certificates(options):
        if item.name in done:
            continue
        said = within(options.seconds, _compared, item)
        row = json.loads(said) if said.startswith("{") else {"name": item.name, "none": said}
        done[item.name] = row
        with lines.open("a") as file:
            file.write(json.dumps(row) + "\n")
        wrong = row.get("disagreements", [])
        print(f"{len(done):4d} {item.name[-80:]} {said if 'none' in row else wrong}", flush=True)
    return _summary(list(done.values()))


def _certificates(options: argparse.Namespace) -> Iterator[Kept]:
    yield from goldens()
    yield from shipped(options.kept, options.seconds)
    if options.zoo is not None:
        yield from zoo(options.zoo, options.kept, options.seconds)


def _rows(lines: Path) -> list[dict[str, Any]]:
    text = lines.read_text() if lines.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _summary(rows: list[dict[str, Any]]) -> int:
    judged = [row for row in rows if "none" not in row]
    files = {row["name"].split(" (")[0] for row in judged}
    counts = ("norms", "proofs", "forms", "bounds")
    totals = ", ".join(f"{sum(row[key] for row in judged)} {key}" for key in counts)
    wrong = [(row["name"], item) for row in judged for item in row["disagreements"]]
    print(f"{len(files)} files, {len(judged)} certificates, {totals}")
    print(f"without an answer in time: {len(rows) - len(judged)}")
    print(f"disagreements: {len(wrong)}")
    for name, item in wrong:
        print(f"DISAGREE {name}: {item}")
    return 1 if wrong else 0


def _compared(item: Kept) -> str:
    """The line of a certificate, as JSON."""
    start = time.process_time()
    certificate = read_certificate(item.data)
    reports = {name: check(item.data, item.model, Choices(name)) for name in ENGINES}
    proofs = {name: proof_of(certificate, item.model, name) for name in ENGINES}
    norms = [line for line in certificate.lines if isinstance(line, NormLine)]
    found = [*_verdicts(reports), *_bounds(certificate, proofs)]
    for line in norms:
        for factor in FACTORS:
            found += _proofs(replace(line, bound=line.stated * factor), proofs)
    return json.dumps(
        {
            "name": item.name,
            "verdict": reports["float"].verdict.value,
            "norms": len(norms),
            "proofs": len(norms) * len(FACTORS),
            "forms": len(proofs["float"].forms),
            "bounds": len(certificate.lines) - len(norms) - len(proofs["float"].forms),
            "disagreements": found,
            "seconds": round(time.process_time() - start, 2),
        }
    )


def _verdicts(reports: dict[str, Report]) -> Iterator[str]:
    verdicts = {name: report.verdict.value for name, report in reports.items()}
    if len(set(verdicts.values())) > 1 or verdicts["float"] not in {"valid", "conditional"}:
        yield f"verdicts {verdicts}: {[report.reasons[:2] for report in reports.values()]}"


def _proofs(line: NormLine, proofs: dict[str, Proof]) -> Iterator[str]:
    """Where an engine proves what the other does not, even if that may be a little larger."""
    larger = replace(line, bound=line.stated * SLACK)
    for one, other in (("float", "exact"), ("exact", "float")):
        if _holds(line, proofs[one]) and not _holds(larger, proofs[other]):
            yield f"{one} alone proves {line.stated!r} for {line.subject}"


def _holds(line: NormLine, proof: Proof) -> bool:
    return line.stated >= line.evaluate(proof)


def _bounds(certificate: Certificate, proofs: dict[str, Proof]) -> Iterator[str]:
    """Lines of which the engines find different least bounds, or none."""
    for number, line in enumerate(certificate.lines):
        found = {}
        for name, proof in proofs.items():
            try:
                found[name] = line.least(line.evaluate(proof))
                proof.add(number, line)
            except NotProved as error:
                found[name] = str(error)
        if len(set(found.values())) > 1 or not all(isinstance(b, float) for b in found.values()):
            yield f"line {number}: {found}"


if __name__ == "__main__":
    sys.exit(main())
