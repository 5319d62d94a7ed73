"""Planted faults: which part of the audit finds which of them, on a tight and on a loose network.

    python -m benchmarks.audit_faults                    all tables, about five minutes on one core
    python -m benchmarks.audit_faults --section claims   one of: loops, claims, batches
    python -m benchmarks.audit_faults --section loops --device cuda     trained there

Loops: plain loops of training are wrong in one thing; a cell says whether an audit of the recorded
run, a twin run and other auditors (see `audit_peers`) find it, and the rows below, how often each
blames a loop without the fault, and its time for a loop. Peers are named by --dp-recorder FOLDER,
--jax-privacy PYTHON and --opake PYTHON, the interpreters that have them.
Claims: bounds of shipped networks are made too small, all of a kind at once, and held against
replayed digits and against what the attack proposes; a cell counts the bounds that were caught.
`no` is a fault that is not found, `–` one that this part of the audit is not about; codes in
brackets are those of an inconclusive check.
Batches: Poisson batches that are drawn wrongly; a cell is the smallest number of steps after which
20 of 20 such runs are found, by sizes and members alone.
benchmarks/audit_faults.md and benchmarks/loop_faults.md show what this prints.
Exits with 1 if a right network or run raises an alarm, or if nothing finds a faulty run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.audit_peers import (
    ONE_RUN,
    Scores,
    canary_scores,
    claimed_epsilon,
    dp_recorder_finds,
    one_run_epsilons,
)
from lipcert.audit.checks.chance import too_rare
from lipcert.audit.checks.draws import member_tests, size_tests
from lipcert.audit.checks.sampling import OF_EACH
from lipcert.audit.records import Verdict
from tests.audit.faults import CLAIM_FAULTS, SUBJECTS, cells_of, report_of
from tests.audit.loop_faults import LISTED, MORE, LoopFault, audit_finds, twin_finds
from tests.audit.private_loops import Loop

__all__ = ["POOLS", "SAMPLERS", "all_found", "main"]

Index = npt.NDArray[np.int64]
Draw = Callable[[Any, int, int, int], Index]
"""random numbers, size of the data set, expected size, step → members"""


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; 0 where nothing right is blamed and every faulty run is found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sections = ("loops", "claims", "batches", "all")
    parser.add_argument("--section", choices=sections, default="all")
    parser.add_argument("--device", default=Loop.device, help="of loops")
    parser.add_argument("--dp-recorder", metavar="FOLDER")
    parser.add_argument("--jax-privacy", metavar="PYTHON")
    parser.add_argument("--opake", metavar="PYTHON")
    given = vars(parser.parse_args(arguments))
    section, start, wrong = given.pop("section"), time.perf_counter(), 0
    Loop.device = given.pop("device")
    if section in ("loops", "all"):
        wrong += loops_table({name: place for name, place in given.items() if place})
    if section in ("claims", "all"):
        wrong += claims_table()
    if section in ("batches", "all"):
        batches_table()
    sys.stderr.write(f"{time.perf_counter() - start:.0f} s\n")
    return 1 if wrong else 0


def loops_table(peers: Mapping[str, str]) -> int:
    """Faults of private loops; returns the number of false alarms of audit and twin.

    Peers are asked about the listed ones only.
    """
    alarms = Counter[str]()
    for title, faults, asked in (("listed", LISTED, peers), ("more", MORE, {})):
        rows = [(fault, _answers(fault.wrong, fault, asked)) for fault in faults]
        repaired = {fault.repaired: fault for fault in faults if not fault.is_right}
        rights = [_answers(kind, fault, asked) for kind, fault in repaired.items()]
        _ask_one_run(asked, [answers for _, answers in rows] + rights)
        names = list(rows[0][1])
        line(f"fault, {title}", *names)
        line("---", *["---"] * len(names))
        for fault, answers in rows:
            line(fault.name, *(answers[name].cell for name in names))
        wrong = [answers for fault, answers in rows if not fault.is_right]
        rights += [answers for fault, answers in rows if fault.is_right]
        for row, group in (("**found**", wrong), ("**right loops blamed**", rights)):
            counts = [sum(a[name].is_found for a in group) for name in names]
            line(row, *(f"**{count}** of {len(group)}" for count in counts))
        every = [*wrong, *rights]
        line("seconds", *(f"{sum(a[n].seconds for a in every) / len(every):.1f}" for n in names))
        alarms.update({n: sum(a[n].is_found for a in rights) for n in ("audit", "twin")})
    return alarms.total()


@dataclass
class _Answer:
    """What one auditor says of one loop."""

    cell: str
    is_found: bool
    seconds: float
    scores: Scores | None = None
    claimed: float = 0.0


def _answers(kind: type[Loop], fault: LoopFault, peers: Mapping[str, str]) -> dict[str, _Answer]:
    asked: dict[str, Callable[[Path], tuple[str, bool]]] = {
        "audit": lambda folder: audit_finds(kind, fault.data(), folder),
        "twin": lambda folder: twin_finds(kind, fault.data(), folder),
    }
    if "dp_recorder" in peers:
        source = peers["dp_recorder"]
        asked["dp_recorder"] = lambda folder: _told(
            dp_recorder_finds(source, kind, fault.data(), folder)
        )
    found = {}
    for name, ask in asked.items():
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.process_time()
            sys.stderr.write(f"{kind.__name__}, {name}\n")
            cell, is_found = ask(Path(folder))
            found[name] = _Answer(cell, is_found, time.process_time() - start)
    known = [name for name in ONE_RUN if name in peers]
    if known:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.process_time()
            scores = canary_scores(kind, fault.data(), Path(folder) / "run")
            seconds = time.process_time() - start
        claimed = claimed_epsilon(kind())
        found |= {name: _Answer("", False, seconds, scores, claimed) for name in known}
    return found


def _told(is_found: bool) -> tuple[str, bool]:
    return ("found" if is_found else "no"), is_found


def _ask_one_run(peers: Mapping[str, str], rows: Sequence[Mapping[str, _Answer]]) -> None:
    """All runs at once, since these peers start slowly."""
    for name in (name for name in ONE_RUN if name in peers):
        answers = [row[name] for row in rows]
        scores = [answer.scores or ((), ()) for answer in answers]
        proved = one_run_epsilons(name, peers[name], scores)
        for answer, least in zip(answers, proved, strict=True):
            answer.cell, answer.is_found = _told(least > answer.claimed)


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


def batches_table() -> None:
    """How many steps it takes to find a sampler that is wrong."""
    line("batches", *(f"{size} of {pool}" for pool, size in POOLS))
    line("---", *["---:"] * len(POOLS))
    for name, draw in SAMPLERS.items():
        line(name, *(_steps_needed(draw, pool, size) for pool, size in POOLS))


def _steps_needed(draw: Draw, pool: int, size: int) -> str:
    """By doubling and bisection: more steps of such a run show more."""
    high = 1
    while not all_found(draw, pool, size, high):
        high *= 2
        if high > MOST:
            return f"more than {MOST}"
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if all_found(draw, pool, size, middle) else (middle, high)
    return str(high)


def all_found(draw: Draw, pool: int, size: int, steps: int) -> bool:
    return all(_is_found(draw, pool, size, steps, seed) for seed in range(20))


def _is_found(draw: Draw, pool: int, size: int, steps: int, seed: int) -> bool:
    random = np.random.default_rng(seed)
    members = [(step, draw(random, pool, size, step)) for step in range(steps)]
    sizes = {step: len(index) for step, index in members}
    rate = size / pool
    tests = [*size_tests(pool, rate, sizes), *member_tests(pool, rate, members)]
    return too_rare(tests, OF_EACH) is not None


def _poisson(random: np.random.Generator, pool: int, size: int, _: int = 0) -> Index:
    return random.choice(pool, random.binomial(pool, size / pool), replace=False)


def _with_first(count: int) -> Draw:
    def draw(random: np.random.Generator, pool: int, size: int, _: int) -> Index:
        return np.union1d(_poisson(random, pool, size), np.arange(count))

    return draw


def _some_more_often(random: np.random.Generator, pool: int, size: int, _: int) -> Index:
    """One in a hundred examples at twice the rate."""
    again = _poisson(random, pool // 100, max(1, size // 100))
    return np.union1d(_poisson(random, pool, size), again)


def _from_a_part(share: float) -> Draw:
    def draw(random: np.random.Generator, pool: int, size: int, _: int) -> Index:
        return random.choice(
            int(share * pool), random.binomial(int(share * pool), size / int(share * pool)), False
        )

    return draw


def _exchanged(share: float) -> Draw:
    """One order for the whole run; a share of every batch is drawn anew."""

    def draw(random: np.random.Generator, pool: int, size: int, _: int) -> Index:
        count = int(random.binomial(pool, size / pool))
        kept = count - int(share * count)
        others = kept + random.choice(pool - kept, count - kept, replace=False)
        return np.concatenate([np.arange(kept), others])

    return draw


def _alike(spread: int) -> Draw:
    def draw(random: np.random.Generator, pool: int, size: int, _: int) -> Index:
        count = size + int(random.integers(-spread, spread + 1))
        return random.choice(pool, count, replace=False)

    return draw


def _cut(random: np.random.Generator, pool: int, size: int, _: int) -> Index:
    return _poisson(random, pool, size)[: size + int(size**0.5)]


def _drawn_again(random: np.random.Generator, pool: int, size: int, step: int) -> Index:
    index = _poisson(random, pool, size)
    is_far = abs(len(index) - size) > size**0.5
    return _drawn_again(random, pool, size, step) if is_far else index


def _pairs(random: np.random.Generator, pool: int, size: int, _: int) -> Index:
    """Each with another one."""
    half = _poisson(random, pool // 2, size // 2)
    return np.concatenate([half, half + pool // 2]) * 7 % pool


def _antithetic(random: np.random.Generator, pool: int, size: int, step: int) -> Index:
    """Who is in a batch is not in the next one, of every two."""
    index = random.permutation(pool)
    if step % 2:
        index = index[~np.isin(index, _LAST.pop())]
    drawn: Index = index[: random.binomial(pool, size / pool)]
    _LAST[:] = [drawn]
    return drawn


def _at_rates(*rates: float) -> Draw:
    """Of equal parts of the data, times the rate."""
    return lambda random, pool, size, _: np.flatnonzero(
        random.random(pool) < size / pool * np.repeat(rates, pool // len(rates))
    )


_LAST: list[Index] = []


def _shuffled(random: np.random.Generator, pool: int, size: int, step: int) -> Index:
    """Epochs of disjoint batches, of sizes that vary as they should."""
    order = np.random.default_rng(step * size // pool).permutation(pool)
    start = step * size % pool
    return order[start : start + int(random.binomial(pool, size / pool))]


POOLS = ((400, 40), (60_000, 256))
MOST = 1024
SAMPLERS: dict[str, Draw] = {
    "one example in every batch": _with_first(1),
    "ten examples in every batch": _with_first(10),
    "one in a hundred examples twice as often": _some_more_often,
    "all batches from nine tenths of the data": _from_a_part(0.9),
    "all batches from a fifth of the data": _from_a_part(0.2),
    "the same batch again, a tenth exchanged": _exchanged(0.1),
    "the same batch again, nine tenths exchanged": _exchanged(0.9),
    "sizes that are all equal": _alike(0),
    "sizes that differ by one at most": _alike(1),
    "shuffled and cut, with Poisson sizes": _shuffled,
    "cut at the mean and a deviation": _cut,
    "drawn again beyond a deviation": _drawn_again,
    "examples in pairs": _pairs,
    "antithetic batches, two and two": _antithetic,
    "a quarter of the data at 2.2 times the rate": _at_rates(2.2, 0.6, 0.6, 0.6),
    "an eighth of the data never": _at_rates(*7 * [8 / 7], 0.0),
}


def line(*cells: str) -> None:
    """A row of a table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
