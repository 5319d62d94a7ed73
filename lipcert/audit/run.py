"""Run: a whole audit, in this process, on a cluster, or as shards that are merged.

Invariant: every result belongs to this job on these inputs, by digest; an existing result is not
computed again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lipcert.analysis.bounded import Progress
from lipcert.audit.checks import Checked, run_checks
from lipcert.audit.conclusion import conclude
from lipcert.audit.job import Job, Shard, Unit
from lipcert.audit.prepared_job import Ready, prepare
from lipcert.audit.records import AuditReport, Check, Verdict
from lipcert.audit.replay import audit_unit, speed_of
from lipcert.audit.unit_results import ResultFolder, UnitResult, total_of
from lipcert.data.opening import is_elsewhere
from lipcert.errors import NoVerdictError, UsageError
from lipcert.measure.arithmetic import Arithmetic, device_named
from lipcert.process.threads import one_thread

if TYPE_CHECKING:
    from lipcert.audit.cluster import Cluster

Work = Callable[[Ready, Sequence[Unit]], Iterator[UnitResult]]
"""Does units, and yields the results as they arrive."""


@one_thread()
def audit(
    job: Job,
    *,
    results: Path | None = None,
    cluster: Cluster | None = None,
    compare_speed: bool = False,
    observe: Progress | None = None,
    data: object = None,
) -> AuditReport:
    """Run an audit and return its report.

    Args:
        results: a folder where results are kept; an audit that was interrupted continues from it.
        cluster: where units are done: None is this process; the address of a Dask scheduler;
            "local" or "local:N" for N processes of this machine; or a `distributed.Client`.
        data: the examples themselves, in place of what the job's `data` names: arrays (x, y), a
            torch Dataset, IterableDataset or DataLoader. Reports then call them by `job.data`.

    Raises:
        NoVerdictError: if the job cannot be done.
    """
    started = time.monotonic()
    is_here = cluster is None
    if not is_here and data is not None:
        raise UsageError(
            "audit: examples cannot be passed to workers of a cluster as an object; give a path "
            "that they can read, or package.module:function"
        )
    if not is_here and compare_speed:
        raise UsageError("audit: speeds are compared in one process; leave the cluster out")
    with ExitStack() as stack:
        work: Work = partial(_done_here, observe=observe)
        if cluster is not None:
            work = stack.enter_context(_workers(cluster))
        job = _on_device(job, is_here=is_here, is_kept=results is not None, data=data)
        ready = prepare(job, observe, data)
        found = run_checks(ready if is_here else _on_cpu(ready))
        folder = None if results is None else ResultFolder.opened(results, job, ready.digest)
        try:
            total = total_of(_all_results(ready, ready.units, folder, work, observe))
        except NoVerdictError as error:
            if all(report.verdict is Verdict.PASS for report in found.reports):
                raise
            total, found = total_of(()), _with_obstacle(found, error)
    return conclude(
        ready,
        total,
        found,
        seconds=time.monotonic() - started,
        plain_step_ratio=speed_of(ready) if compare_speed else None,
    )


@one_thread()
def audit_shard(job: Job, shard: Shard, results: Path, observe: Progress | None = None) -> int:
    """Do the units of one shard of a job, keep the results, and return their number.

    `merged_report` reports on the results, whether or not all shards are done.
    """
    job = _on_device(job, is_here=True, is_kept=True)
    ready = prepare(job, observe)
    units = ready.units[shard.index :: shard.count]
    folder = ResultFolder.opened(results, job, ready.digest)
    for _ in _all_results(ready, units, folder, partial(_done_here, observe=observe), observe):
        pass
    return len(units)


@one_thread()
def merged_report(results: Path, observe: Progress | None = None) -> AuditReport:
    """Return the report of the results in a folder; units without a result make it inconclusive."""
    started = time.monotonic()
    job = ResultFolder.job_in(results)
    ready = prepare(job, observe)
    kept = ResultFolder.opened(results, job, ready.digest).kept(ready.units)
    checked = run_checks(_on_cpu(ready))
    return conclude(ready, total_of(kept), checked, seconds=time.monotonic() - started)


def _on_device(job: Job, *, is_here: bool, is_kept: bool, data: object = None) -> Job:
    """Return the job with its device; raise NoVerdictError if this machine should do it and has no
    such device.

    If other processes do the job or continue it, its paths become absolute, so that it means the
    same in every folder.
    """
    device = device_named(job.device)
    if is_here:
        Arithmetic(device, job.precision)  # refuses what is absent
    job = replace(job, device=str(device))
    if is_here and not is_kept:
        return job
    is_path = data is None and job.data is not None and not is_elsewhere(job.data)
    return replace(
        job,
        model=os.path.abspath(job.model),
        certificate=_absolute(job.certificate),
        trace=_absolute(job.trace),
        data=_absolute(job.data) if is_path else job.data,
    )


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)


def _on_cpu(ready: Ready) -> Ready:
    """Return the job on the CPU, for checks that run here, whatever devices the workers have."""
    return replace(ready, recorded=ready.recorded and replace(ready.recorded, device="cpu"))


def _workers(cluster: Cluster) -> AbstractContextManager[Work]:
    """Return the workers of a cluster; Dask is loaded here."""
    try:
        from lipcert.audit.cluster import workers
    except ModuleNotFoundError as error:
        raise NoVerdictError(
            f"audit: {error.name} is not installed; install it with: pip install 'lipcert[cluster]'"
        ) from error
    return workers(cluster)


def _all_results(
    ready: Ready,
    units: Iterable[Unit],
    folder: ResultFolder | None,
    work: Work,
    observe: Progress | None,
) -> Iterator[UnitResult]:
    """Yield the results that are kept, then those of the missing units as they arrive."""
    done = set()
    if folder is not None:
        for result in folder.kept(ready.units):
            done.add(result.unit.number)
            yield result
    missing = [unit for unit in units if unit.number not in done]
    for result in work(ready, missing):
        if folder is not None:
            folder.keep(result)
        done.add(result.unit.number)
        if observe is not None:
            unit = result.unit
            observe(f"{unit.kind.value} at {unit.weights}", len(done), len(ready.units))
        yield result


def _done_here(
    ready: Ready, units: Sequence[Unit], observe: Progress | None
) -> Iterator[UnitResult]:
    return (audit_unit(ready, unit, observe) for unit in units)


def _with_obstacle(found: Checked, error: NoVerdictError) -> Checked:
    """Report both the findings of the checks, which explain why the run cannot be replayed, and the
    error."""
    obstacle = Check("LC318", "replay", "see the other findings first").failed(
        f"no unit counts, because the run cannot be replayed: {error}",
        verdict=Verdict.INCONCLUSIVE,
    )
    return replace(found, reports=(*found.reports, obstacle))
