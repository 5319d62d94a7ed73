"""Work: units of a job that was made ready in this process.

What enters: the job and a unit. What leaves: the result. `audit_unit` depends on nothing but its
arguments, so that it may be called anywhere; what is tuned for weights is kept within a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from lipcert.analysis.bounded import Progress
from lipcert.audit.attack import proposals
from lipcert.audit.audited_weights import Settled, settled_at, settled_weights
from lipcert.audit.evaluator import Bench
from lipcert.audit.job import Kind, Unit
from lipcert.audit.prepared_job import MODEL, Ready
from lipcert.audit.replay import Replayer
from lipcert.audit.tally import Findings
from lipcert.audit.unit_results import UnitResult


def audit_unit(ready: Ready, unit: Unit, observe: Progress | None = None) -> UnitResult:
    """Do one unit of a job."""
    if unit.kind is Kind.ATTACK:
        return UnitResult(unit, Findings.all(_attacked(ready, unit, observe or _unobserved)))
    return UnitResult(unit, _replayed(ready, unit))


def _unobserved(what: str, done: int, total: int) -> None:
    """Nobody watches."""
    del what, done, total


def speed_of(ready: Ready) -> float | None:
    """Time over a plain step for one micro-batch; None where there is no example."""
    if not ready.units or ready.units[0].kind is Kind.ATTACK:
        return None
    job, unit = ready.job, ready.units[0]
    examples = ready.examples(unit.examples).read(0, job.micro_batch)
    bench = Bench(
        ready.claims,
        job.precision,
        torch.device(job.device),
        ready.weights(unit.weights),
        watch_values=job.watch_values,
    )
    return bench.plain_step_ratio(examples.x, examples.y)


def _replayed(ready: Ready, unit: Unit) -> Findings:
    replayer = _recent_replayer(ready, unit.weights)
    return replayer.replay(ready.examples(unit.examples), unit.start, unit.stop)


@lru_cache(maxsize=2)
def _recent_replayer(ready: Ready, weights: str) -> Replayer:
    """Units of the same weights follow one another: what is tuned for them is kept."""
    return _replayer(ready, _settled(ready, weights), weights)


def _settled(ready: Ready, weights: str) -> Settled:
    if ready.trace is None or weights == MODEL:
        return settled_weights(ready.claims, None)
    return settled_at(ready.claims, ready.trace, weights)


def _attacked(ready: Ready, unit: Unit, observe: Progress) -> Iterator[Findings]:
    """What the proposals of the attack show when they are replayed like any other examples."""
    given = _settled(ready, unit.weights)
    found = proposals(
        given.claims,
        given.weights,
        ready.examples(unit.examples).read(0, unit.stop or 0),
        ready.job.attack_steps,
        move_weights=ready.job.attack_weights,
        device=torch.device(ready.job.device),
        observe=lambda what, done, steps: observe(
            f"attack, {what}: {done} of {steps}", unit.number, len(ready.units)
        ),
    )
    for number, proposal in enumerate(found, start=1):
        moved = proposal.weights
        at = given if moved is None else settled_weights(ready.claims, moved)
        replayer = _replayer(ready, at, f"attack {number} from {unit.weights}")
        yield replayer.replay(proposal.examples, 0, len(proposal.examples))


def _replayer(ready: Ready, at: Settled, name: str) -> Replayer:
    job = ready.job
    return Replayer(
        at.claims,
        job.precision,
        torch.device(job.device),
        at.weights,
        name=name,
        judges=at.admissible,
        micro_batch=job.micro_batch,
        watch_values=job.watch_values,
        timed=job.timed,
    )
