"""The mutation score of the certificate checker: weakened certificates that it rejects.

    python -m benchmarks.certificate_mutants                   500 mutants of each family
    python -m benchmarks.certificate_mutants --per-family 2000 --engine exact

Four families of small networks (MLP, CNN, residual with BatchNorm and GroupNorm, transformer), each
certified for its weights and for a set of weights, and one with Poisson samples. Every mutant that
weakens the statement must be rejected, with a reason of the stage that it belongs to; every
harmless one must stay accepted; a bad witness may be either. Leaves with 1 unless all are.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from tests.core.mutants.assumptions import premise_mutants
from tests.core.mutants.every import every_mutant
from tests.core.mutants.networks import FAMILIES, certified
from tests.core.mutants.record import Mutant, Outcome, judged

__all__ = ["main"]

Score = Counter[tuple[str, Outcome]]
_SAMPLED: Final = "poisson"


@final
@dataclass(frozen=True, slots=True)
class Job:
    """At most so many mutants of one certificate. sampled: only other premises, by Poisson."""

    family: str
    constrained: bool
    sampled: bool
    engine: str
    most: int


@final
@dataclass(frozen=True, slots=True)
class Result:
    """What came of a job. failures: sentences."""

    job: Job
    score: Score
    failures: tuple[str, ...]


def main(arguments: list[str] | None = None) -> int:
    """Run, print the table, return 0 for a score of 100 %."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--per-family", type=int, default=500, metavar="N")
    parser.add_argument("--engine", choices=("float", "exact"), default="float")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    jobs = list(_jobs(options.per_family, options.engine))
    with ProcessPoolExecutor(options.jobs) as pool:
        results = list(pool.map(_run, jobs))
    failures = [failure for result in results for failure in result.failures]
    sys.stdout.write(_table(results))
    sys.stdout.writelines(f"WRONG {failure}\n" for failure in failures[:40])
    total = sum(sum(result.score.values()) for result in results)
    scores = [item for result in results for item in result.score.items()]
    rejected = sum(count for (_, outcome), count in scores if outcome is Outcome.REJECTED)
    seconds = time.perf_counter() - start
    sys.stdout.write(
        f"{total} mutants, {rejected} rejected, {len(failures)} wrong, {seconds:.0f} s\n"
    )
    return 1 if failures else 0


def _jobs(most: int, engine: str) -> Iterator[Job]:
    for family in FAMILIES:
        for constrained in (False, True):
            yield Job(family, constrained, False, engine, -(-most // 2))
    yield Job(FAMILIES[0], True, True, engine, most)


def _run(job: Job) -> Result:
    """Mutants of one certificate, spread evenly over all kinds."""
    score: Score = Counter()
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        more: dict[str, object] = {"sampling": _SAMPLED} if job.sampled else {}
        case = certified(job.family, folder, constrained=job.constrained, **more)
        every = list(premise_mutants(case) if job.sampled else every_mutant(case, folder))
        for item in _spread(every, job.most):
            outcome, said = judged(case, item, folder, job.engine)
            score[item.kind, outcome] += 1
            if outcome is Outcome.WRONG:
                failures.append(f"{case.name}: {item.kind} ({item.effect.value}): {said}")
    return Result(job, score, tuple(failures))


def _spread(every: list[Mutant], most: int) -> Iterator[Mutant]:
    """At least one of every kind, and about as many of each until there are enough."""
    kinds: dict[str, list[Mutant]] = {}
    for item in every:
        kinds.setdefault(item.kind, []).append(item)
    rows = itertools.zip_longest(*kinds.values())
    chosen = (item for row in rows for item in row if item is not None)
    return itertools.islice(chosen, max(most, len(kinds)))


def _table(results: list[Result]) -> str:
    totals: Score = Counter()
    for result in results:
        totals += result.score
    kinds = sorted({kind for kind, _ in totals})
    lines = [f"{'kind':44s} {'tried':>6s} {'rejected':>8s} {'accepted':>8s} {'wrong':>6s}"]
    for kind in kinds:
        counts = [totals[kind, outcome] for outcome in Outcome]
        lines.append(f"{kind:44s} {sum(counts):6d} {counts[0]:8d} {counts[1]:8d} {counts[2]:6d}")
    for result in results:
        scope = "set" if result.job.constrained else "point"
        label = f"{result.job.family}/{scope}{' poisson' if result.job.sampled else ''}"
        lines.append(f"{label:44s} {sum(result.score.values()):6d}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
