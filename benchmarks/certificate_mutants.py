"""The mutation score of the certificate checker: weakened certificates that it rejects.

    python -m benchmarks.certificate_mutants FOLDER               the small networks
    python -m benchmarks.certificate_mutants FOLDER --kept KEPT   and certificates of real files
    python -m benchmarks.certificate_mutants FOLDER --seed 1      other mutants of the same

Families of small networks, each certified for its weights and for a set of weights, and one with
Poisson samples; with --kept, certificates that `benchmarks.engines` issued into KEPT: goldens,
shipped models, files of a zoo. All numbers are set to the least that their lines prove first, so
that one ulp less is too little. Every mutant that weakens the statement must be rejected, with a
reason of the stage that it belongs to; every harmless one must stay accepted; a bad witness may be
either.

What mutants of one certificate share is computed once; every tenth is judged by a check that
shares nothing as well, and has to be judged alike. Each outcome is written to FOLDER as it is
found: a run that was stopped goes on, and ranges of seeds add up. Leaves with 1 unless all are
right.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.kept_certificates import Kept, goldens, kept_in
from lipcert.core.certificate import read_certificate
from lipcert.text.certificate import write_certificate
from tests.core.mutants.assumptions import premise_mutants
from tests.core.mutants.every import certificate_mutants, every_mutant, spread
from tests.core.mutants.networks import FAMILIES, Case, certified
from tests.core.mutants.record import Mutant, Outcome, judged
from tests.core.mutants.reuse import reused
from tests.core.mutants.tight import tight

__all__ = ["main"]

_ALONE: Final = 10
"""every how many mutants one is also judged by a check that shares nothing"""


def main(arguments: list[str] | None = None) -> int:
    """Run, print the table, return 0 for a score of 100 %."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certificate_mutants")
    parser.add_argument("folder", type=Path, help="where outcomes are written")
    parser.add_argument("--most", type=int, default=120, help="mutants of each small network")
    parser.add_argument("--kept", type=Path, help="certificates of real files")
    parser.add_argument("--most-kept", type=int, default=40, help="mutants of each of them")
    parser.add_argument("--largest", type=int, default=200_000, help="bytes of a certificate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("float", "exact"), default="float")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    lines = options.folder / f"{options.engine}-{options.seed}.jsonl"
    with tempfile.TemporaryDirectory() as name:
        for number, (label, most) in enumerate(_cases(options)):
            _run(label, most, lines, options, Path(name) / str(number))
    return _summary(options.folder)


Label = tuple[str, bool, bool] | Kept
"""a family, whether constrained, whether sampled; or a certificate that there is"""


def _cases(options: argparse.Namespace) -> Iterator[tuple[Label, int]]:
    for family in FAMILIES:
        for constrained in (False, True):
            yield (family, constrained, False), options.most
    yield (FAMILIES[0], True, True), options.most
    if options.kept is not None:
        for item in (*goldens(), *kept_in(options.kept)):
            if len(item.data) <= options.largest:
                yield item, options.most_kept


def _run(label: Label, most: int, lines: Path, options: argparse.Namespace, folder: Path) -> None:
    """Mutants of one certificate, spread evenly over all kinds, after those that were judged."""
    name = label.name if isinstance(label, Kept) else _named(*label)
    done = sum(row["case"] == name for row in _rows(lines))
    if done >= most:
        return
    folder.mkdir()
    start = time.process_time()
    case, every = _mutants(label, name, folder)
    memory: dict[Any, Any] = {}
    for number, item in enumerate(_chosen(case, every, most, options.seed)):
        if number < done:
            continue
        with reused(memory):
            outcome, said = judged(case, item, folder, options.engine)
        if number % _ALONE == 0 and outcome is not Outcome.WRONG:
            alone = judged(case, item, folder, options.engine)
            if alone != (outcome, said):
                outcome, said = Outcome.WRONG, f"{said}; alone: {alone[1]}"
        row = {"case": name, "kind": item.kind, "effect": item.effect.value}
        row |= {"outcome": outcome.value, "alone": number % _ALONE == 0, "said": said}
        with lines.open("a") as file:
            file.write(json.dumps(row) + "\n")
    print(f"{name[-70:]:70s} {time.process_time() - start:7.1f} s", flush=True)


def _mutants(label: Label, name: str, folder: Path) -> tuple[Case, list[Mutant]]:
    """A certificate of tight claims, and all of its mutants, none of which is made yet."""
    if isinstance(label, Kept):
        certificate = tight(read_certificate(label.data), label.model)
        case = Case(name, label.model, certificate)
        return case, list(certificate_mutants(case))
    family, constrained, sampled = label
    more: dict[str, object] = {"sampling": "poisson"} if sampled else {}
    case = certified(family, folder, constrained=constrained, **more)
    return case, list(premise_mutants(case) if sampled else every_mutant(case, folder))


def _named(family: str, constrained: bool, sampled: bool) -> str:
    return f"{family}/{'set' if constrained else 'point'}{' poisson' if sampled else ''}"


def _chosen(case: Case, every: list[Mutant], most: int, seed: int) -> Iterator[Mutant]:
    """So many mutants, by turns one of each kind; no copies of the certificate."""
    same = write_certificate(case.certificate)
    turns = spread(every, len(every), f"{case.name} {seed}")
    return itertools.islice((item for item in turns if item.model or item.data() != same), most)


def _rows(lines: Path) -> list[dict[str, Any]]:
    text = lines.read_text() if lines.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _summary(folder: Path) -> int:
    """The table over all seeds and engines that were run."""
    rows = [row for lines in sorted(folder.glob("*.jsonl")) for row in _rows(lines)]
    outcomes = [outcome.value for outcome in Outcome]
    totals = Counter((row["kind"].split(":")[0], row["outcome"]) for row in rows)
    print(f"| {'kind of mutant':44s} | tried | rejected | accepted | wrong |")
    print(f"| {'---':44s} | ---: | ---: | ---: | ---: |")
    for kind in sorted({kind for kind, _ in totals}):
        counts = [totals[kind, outcome] for outcome in outcomes]
        cells = " | ".join(f"{count}" for count in (sum(counts), *counts))
        print(f"| {kind:44s} | {cells} |")
    whole = Counter(row["outcome"] for row in rows)
    cells = " | ".join(f"{count}" for count in (len(rows), *(whole[o] for o in outcomes)))
    print(f"| {'all':44s} | {cells} |")
    effects = Counter((row["effect"], row["outcome"]) for row in rows)
    for (effect, outcome), count in sorted(effects.items()):
        print(f"{effect}: {count} {outcome}")
    alone = sum(row["alone"] for row in rows)
    print(f"{len({row['case'] for row in rows})} certificates, {alone} mutants judged twice")
    for row in [row for row in rows if row["outcome"] == Outcome.WRONG.value][:40]:
        print(f"WRONG {row['case']}: {row['kind']} ({row['effect']}): {row['said']}")
    return 1 if whole[Outcome.WRONG.value] else 0


if __name__ == "__main__":
    sys.exit(main())
