"""Work: a job made ready on this machine, and its units done one by one.

What enters: a job. What leaves: units, and the result of each. `audit_unit` depends on nothing but
its arguments, so that any scheduler may call it anywhere; what is slow to make ready is remembered
within a process.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, final

import torch

from lipcert.analysis.bounded import Progress
from lipcert.audit.attack import proposals
from lipcert.audit.bench import Bench
from lipcert.audit.bounds import Claims, claims_of_analysis, claims_of_certificate
from lipcert.audit.checks import Checked, run_checks
from lipcert.audit.checks.weight_constraint import Settled, settled_weights
from lipcert.audit.data import Examples, read_examples
from lipcert.audit.job import Job, Kind, Unit, units_of
from lipcert.audit.random_examples import random_examples
from lipcert.audit.recorded import checkpoints, examples_at, recorded_batches, weights_at
from lipcert.audit.replay import Replayed, Replayer
from lipcert.audit.tally import Family, merged
from lipcert.audit.trace.reading import Trace, read_trace
from lipcert.audit.unit_result import UnitResult
from lipcert.certificate.fields import CertificateFormatError
from lipcert.certificate.records import Certificate, read_certificate
from lipcert.checker.files import CertificateFileError, read_certificate_file
from lipcert.errors import NoVerdictError
from lipcert.importer.load import load_model
from lipcert.importer.model import ImportedModel
from lipcert.norms.operator_norm import operator_norm
from lipcert.scope import NormRule
from lipcert.upper import FloatArray, Upper

__all__ = ["Ready", "audit_unit", "checked", "float_bounds", "prepare", "speed_of"]

MODEL: Final = "model"
"""the weights of the file"""
DATA: Final = "data"
"""the examples of the data file"""
RANDOM: Final = "random inputs"
"""examples drawn from the input domain, where an attack has no data to start from"""
_STARTS: Final = 64


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A job with everything it refers to. digest: of the job and the content of its inputs."""

    job: Job
    model: ImportedModel
    claims: Claims
    data: Examples | None
    trace: Trace | None
    units: tuple[Unit, ...]
    digest: str

    def weights(self, name: str) -> Mapping[str, FloatArray] | None:
        """Weights by the name that units use; None for those of the file."""
        if self.trace is None or name == MODEL:
            return None
        return weights_at(self.trace, name, self.claims.engine.graph)

    def examples(self, name: str) -> Examples:
        """Examples by the name that units use."""
        if self.data is not None and name == DATA:
            return self.data
        if self.trace is not None and name != RANDOM:
            return examples_at(self.trace, name, self.claims.engine.graph.input_shape)
        return random_examples(self.claims, _STARTS)


def prepare(job: Job, observe: Progress | None = None, certify: NormRule = operator_norm) -> Ready:
    """Read, import and bound everything that the job refers to."""
    certificate = None if job.certificate is None else _certificate(Path(job.certificate))
    settings = job.settings
    output = settings.output if certificate is None else certificate.model.output
    model = load_model(job.model, output=output, as_exported=settings.as_exported)
    if certificate is None:
        claims = claims_of_analysis(model, settings, observe, certify)
    else:
        claims = claims_of_certificate(model, certificate, str(job.certificate), observe, certify)
    shape = claims.engine.graph.input_shape
    data = None if job.data is None else read_examples(Path(job.data), shape)
    trace = None if job.trace is None else read_trace(Path(job.trace))
    return Ready(
        job=job,
        model=model,
        claims=claims,
        data=data,
        trace=trace,
        units=units_of(_pairs(data, trace), job, _STARTS),
        digest=job.digest(_inputs(model, job, data, trace)),
    )


@lru_cache(maxsize=1)
def _prepared(job: Job) -> Ready:
    return prepare(job)


def audit_unit(
    job: Job, unit: Unit, ready: Ready | None = None, observe: Progress | None = None
) -> UnitResult:
    """Do one unit of a job. ready: the job, where this process has made it ready already."""
    found = _prepared(job) if ready is None else ready
    started = time.monotonic()
    attacks = unit.kind is Kind.ATTACK
    parts = (
        list(_attacked(found, unit, observe or _unobserved))
        if attacks
        else [_replayed(found, unit)]
    )
    return UnitResult(
        unit=unit.number,
        kind=unit.kind,
        examples=sum(part.examples for part in parts),
        tallies=merged(part.tallies for part in parts),
        checks=tuple(check for part in parts for check in part.checks),
        seconds=time.monotonic() - started,
    )


def _unobserved(what: str, done: int, total: int) -> None:
    """Nobody watches."""
    del what, done, total


def checked(ready: Ready) -> Checked:
    """Everything that is checked besides norms; cheap, and done by whoever reports."""
    return run_checks(ready)


def float_bounds(ready: Ready) -> Mapping[str, float]:
    """Of each group with a bound, what the audited arithmetic may reach if that bound is right."""
    job = ready.job
    bench = Bench(ready.claims, job.precision, torch.device(job.device), None)
    bounds = {
        group.name: Upper(group.grad_norm) + Upper(bench.drift(Family.GRADIENT, group.name))
        for group in ready.claims.groups
        if group.grad_norm is not None
    }
    return {name: bound.value for name, bound in bounds.items() if bound.is_finite}


def speed_of(ready: Ready) -> float | None:
    """Time over a plain step for one micro-batch; None where there is no example."""
    if not ready.units or ready.units[0].kind is Kind.ATTACK:
        return None
    job, unit = ready.job, ready.units[0]
    examples = ready.examples(unit.examples)
    some = slice(0, min(len(examples), job.micro_batch))
    bench = Bench(
        ready.claims,
        job.precision,
        torch.device(job.device),
        ready.weights(unit.weights),
        watch_values=job.watch_values,
    )
    return bench.plain_step_ratio(examples.x[some], examples.y[some])


def _replayed(ready: Ready, unit: Unit) -> Replayed:
    replayer = _recent_replayer(ready, unit.weights)
    return replayer.replay(ready.examples(unit.examples), unit.start, unit.stop)


@lru_cache(maxsize=2)
def _recent_replayer(ready: Ready, weights: str) -> Replayer:
    """Units of the same weights follow one another: what is tuned for them is kept."""
    return _replayer(ready, settled_weights(ready.claims, ready.weights(weights)), weights)


def _attacked(ready: Ready, unit: Unit, observe: Progress) -> Iterator[Replayed]:
    """What the proposals of the attack show when they are replayed like any other examples."""
    given = settled_weights(ready.claims, ready.weights(unit.weights))
    examples = ready.examples(unit.examples)
    start = Examples(examples.x[: unit.stop], examples.y[: unit.stop], examples.source, "")
    found = proposals(
        ready.claims,
        given.weights,
        start,
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
        ready.claims,
        job.precision,
        torch.device(job.device),
        at.weights,
        name=name,
        judges=at.admissible,
        micro_batch=job.micro_batch,
        watch_values=job.watch_values,
        timed=job.timed,
    )


def _pairs(data: Examples | None, trace: Trace | None) -> list[tuple[str, str, int]]:
    """Which weights meet which examples: (weights, examples, number of examples).

    The data meet the weights of the file, or every recorded set of weights; every recorded batch
    meets the weights that it met in training.
    """
    if trace is None:
        return [(MODEL, RANDOM, 0) if data is None else (MODEL, DATA, len(data))]
    pairs = [(name, name, count) for name, count in recorded_batches(trace)]
    if data is not None:
        pairs += [(name, DATA, len(data)) for name in checkpoints(trace)]
    return pairs


def _inputs(
    model: ImportedModel, job: Job, data: Examples | None, trace: Trace | None
) -> Mapping[str, str]:
    """Digests of everything that the job reads."""
    found = {"model": model.sha256, **{f"beside {k}": v for k, v in model.external.items()}}
    if job.certificate is not None:
        found["certificate"] = sha256_of(Path(job.certificate))
    if data is not None:
        found["data"] = data.sha256
    if trace is not None:
        found["trace"] = trace.head
    return found


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _certificate(path: Path) -> Certificate:
    try:
        return read_certificate(read_certificate_file(path))
    except (CertificateFileError, CertificateFormatError) as error:
        raise NoVerdictError(f"audit: {path} is no certificate: {error}") from error
