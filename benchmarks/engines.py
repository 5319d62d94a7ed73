"""The exact engine against the float engine, on certificates of real files.

    python -m benchmarks.engines KEPT                    goldens and shipped models
    python -m benchmarks.engines KEPT --zoo FOLDER       and all files of a zoo

Both engines check every certificate, and every proof in it is asked of both: norms and runs as
they are claimed, and at claims below that. Where one engine proves a claim, the other has to prove
it too, up to what integers leave unexplained; bounds that are derived must be equal to the last
bit, and so must the chains that are used. Certificates are issued into KEPT, where the lines of
the table are written as they are found, so that a run that was stopped goes on. Leaves with 1
where there is a disagreement.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

os.environ["LIPCERT_CACHE"] = "false"

from benchmarks.kept_certificates import Kept, goldens, shipped, within, zoo
from lipcert.core.certificate import Certificate, NormClaim, read_certificate
from lipcert.core.check import Choices, check
from lipcert.core.clips import with_clips
from lipcert.core.derive import Derived, derive
from lipcert.core.ledger import Premises
from lipcert.core.lower.lower import lower
from lipcert.core.norm_evidence import ENGINES, Evidence, is_proved, prove
from lipcert.core.program import Program, Step
from lipcert.core.reader.model import read_model
from lipcert.core.verdict import Report

FACTORS: Final = (1.0, 1.0 - 2.0**-24, 1.0 - 2.0**-16, 1.0 - 2.0**-8, 0.5)
"""of claims that both engines are asked about"""
SLACK: Final = 1.0 + 2.0**-30
"""how much larger a claim may have to be for the other engine"""


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
    counts = ("norms", "proofs", "runs", "chains", "bounds")
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
    found = list(_verdicts(reports))
    program = lower(read_model(item.model), certificate.model.output)
    premises = Premises.read(certificate.assumptions)
    if premises.layer_clip is not None:
        program = with_clips(program, premises.layer_clip)
    evidence = {name: prove(certificate, program, ENGINES[name]).evidence for name in ENGINES}
    proofs = 0
    for steps, claim in _claims(certificate, program):
        for factor in FACTORS:
            proofs += 1
            asked = replace(claim, bound=claim.bound * factor)
            found += _proofs(steps, asked, program, evidence)
    derived = {name: derive(program, premises, evidence[name]) for name in ENGINES}
    bounds, different = _bounds(derived["float"], derived["exact"])
    return json.dumps(
        {
            "name": item.name,
            "verdict": reports["float"].verdict.value,
            "norms": len(evidence["float"].norms),
            "runs": len(certificate.runs),
            "chains": len(certificate.chains),
            "proofs": proofs,
            "bounds": bounds,
            "disagreements": [*found, *different],
            "seconds": round(time.process_time() - start, 2),
        }
    )


def _verdicts(reports: dict[str, Report]) -> Iterator[str]:
    verdicts = {name: report.verdict.value for name, report in reports.items()}
    if len(set(verdicts.values())) > 1 or verdicts["float"] not in {"valid", "conditional"}:
        yield f"verdicts {verdicts}: {[report.reasons[:2] for report in reports.values()]}"


def _claims(
    certificate: Certificate, program: Program
) -> Iterator[tuple[tuple[Step, ...], NormClaim]]:
    """All norms that are claimed, of steps and of runs."""
    steps = {step.output: step for step in program.steps}
    for node in certificate.nodes:
        for claim in node.claims:
            if claim.operator_norm is not None:
                yield (steps[claim.value],), claim.operator_norm
    for run in certificate.runs:
        yield tuple(steps[value] for value in run.values), run.norm


def _proofs(
    steps: tuple[Step, ...], claim: NormClaim, program: Program, evidence: dict[str, Evidence]
) -> Iterator[str]:
    """Where an engine proves what the other does not, even of a claim that is a little larger."""
    larger = replace(claim, bound=claim.bound * SLACK)
    for one, other in (("float", "exact"), ("exact", "float")):
        if is_proved(steps, claim, program, evidence[one]) and not is_proved(
            steps, larger, program, evidence[other]
        ):
            yield f"{one} alone proves {claim.bound!r} for {steps[-1].output}"


def _bounds(one: Derived, other: Derived) -> tuple[int, list[str]]:
    """How many bounds were compared, and which differ."""
    pairs = {"lipschitz": (one.lipschitz, other.lipschitz)}
    pairs |= {f"value {n}": (f.norm, other.facts[n].norm) for n, f in one.facts.items()}
    pairs |= {
        f"cotangent {n}": (c.norm, other.cotangents[n].norm) for n, c in one.cotangents.items()
    }
    pairs |= {f"gradient {n}": (g, other.gradients[n]) for n, g in one.gradients.items()}
    wrong = [f"{name}: {a!r} and {b!r}" for name, (a, b) in pairs.items() if a != b]
    if one.chains != other.chains:
        wrong.append("the chains that are used")
    return len(pairs), wrong


if __name__ == "__main__":
    sys.exit(main())
