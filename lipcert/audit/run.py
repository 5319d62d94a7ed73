"""Run: a whole audit in this process, alone or as one of many workers.

What enters: a job, and a folder where several work on it. What leaves: the report, or None where
another worker gives it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lipcert.analysis.bounded import Progress
from lipcert.audit.arithmetic import Arithmetic, device_named, use_gpu
from lipcert.audit.checks import Checked, run_checks
from lipcert.audit.conclusion import conclude
from lipcert.audit.folder import WorkFolder
from lipcert.audit.job import Job, Unit, Worker
from lipcert.audit.ready import Ready, prepare
from lipcert.audit.records import AuditReport, Check, Verdict
from lipcert.audit.unit_result import UnitResult, total_of
from lipcert.audit.work import audit_unit, speed_of
from lipcert.errors import NoVerdictError
from lipcert.threads import one_thread


@one_thread()
def audit(
    job: Job,
    *,
    folder: Path | None = None,
    worker: Worker | None = None,
    compare_speed: bool = False,
    observe: Progress | None = None,
    data: object = None,
) -> AuditReport | None:
    """Do a job. folder: where workers share it; None: all of it is done here.

    data: the examples themselves, in place of what the job's `data` names: arrays (x, y), a torch
    Dataset, IterableDataset or DataLoader. `job.data` is then what reports call them.

    None where another worker reports. Raises NoVerdictError where the job cannot be done.
    """
    worker = worker or Worker()
    started = time.monotonic()
    device = device_named(job.device)
    use_gpu(device, worker.local)
    Arithmetic(device, job.precision)  # refuses what is absent
    job = replace(job, device=str(device), timed=folder is None)
    ready = prepare(job, observe, data)
    found = run_checks(ready)
    try:
        total = total_of(_results(ready, folder, worker, observe))
    except NoVerdictError as error:
        if all(report.verdict is Verdict.PASS for report in found.reports):
            raise
        total, found = total_of(()), _with_obstacle(found, error)
    if not worker.reports:
        return None
    ratio = speed_of(ready) if compare_speed else None
    return conclude(
        ready,
        total,
        found,
        seconds=time.monotonic() - started,
        plain_step_ratio=ratio,
    )


@one_thread()
def merged_report(
    folder: Path, observe: Progress | None = None, data: object = None
) -> AuditReport:
    """The report of the results that are in a folder; units without one make it inconclusive.

    data: as of `audit`.
    """
    started = time.monotonic()
    job = WorkFolder.job_in(folder)
    ready = prepare(job, observe, data)
    results = WorkFolder.opened(folder, job, ready.digest).results()
    here = replace(ready, job=replace(job, device="cpu"))  # whatever the workers had
    checked = run_checks(here)
    return conclude(ready, total_of(results), checked, seconds=time.monotonic() - started)


def _results(
    ready: Ready, folder: Path | None, worker: Worker, observe: Progress | None
) -> Iterator[UnitResult]:
    """Those of all units, whoever does them, as they come."""
    if folder is None:
        yield from (_done(ready, unit, observe) for unit in ready.units)
        return
    shared = WorkFolder.opened(folder, ready.job, ready.digest)
    for unit in shared.claimed(ready.units, worker.rank * len(ready.units) // worker.count):
        shared.keep(unit, _done(ready, unit, observe))
    yield from shared.results()


def _with_obstacle(found: Checked, error: NoVerdictError) -> Checked:
    """What the checks found explains why the run cannot be replayed; both are told."""
    obstacle = Check("LC318", "replay", "see the other findings first").failed(
        f"no unit counts, because the run cannot be replayed: {error}",
        verdict=Verdict.INCONCLUSIVE,
    )
    return Checked((*found.reports, obstacle), found.not_done)


def _done(ready: Ready, unit: Unit, observe: Progress | None) -> UnitResult:
    result = audit_unit(ready.job, unit, ready, observe)
    if observe is not None:
        observe(f"{unit.kind.value} at {unit.weights}", unit.number + 1, len(ready.units))
    return result
