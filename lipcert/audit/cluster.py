"""Cluster: units of an audit as tasks of Dask; only this module imports Dask.

Results are yielded as they arrive. Invariants: a worker reads every input itself, and refuses to
work unless its inputs are, byte for byte, what the client read; a worker that dies loses the unit
in progress, which another worker does again.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any, Final

from distributed import CancelledError, Client, Future, LocalCluster, as_completed, get_worker
from distributed.scheduler import KilledWorker

from lipcert.audit.job import Job, Unit
from lipcert.audit.prepared_job import Ready, prepare
from lipcert.audit.replay import audit_unit
from lipcert.audit.unit_results import UnitResult
from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.process.threads import one_thread
from lipcert.version import __version__

Cluster = str | Client
_LOCAL: Final = re.compile(r"local(?::([1-9]\d{0,3}))?")
_RETRIES: Final = 2
"""Retries of a unit that raised: a file system or memory may be available again."""
_PATIENCE_SECONDS: Final = 600.0
"""Longest time without any worker."""
_LOOK_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.05
_PRELOAD: Final = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
"""Makes workers ignore an interrupt of the terminal; the client handles it, and ends its
workers."""
_ALONE: Final = Lock()
"""Held while a unit is done: torch's settings belong to the process, so each process does one at a
time."""


@contextmanager
def workers(cluster: Cluster) -> Iterator[Callable[[Ready, Sequence[Unit]], Iterator[UnitResult]]]:
    """Yield a function that does units on "local", "local:N" (N processes of this machine), at the
    address of a scheduler, or with a client, which stays open."""
    if not isinstance(cluster, str):
        yield lambda ready, units: _results(cluster, ready, units)
        return
    local = _LOCAL.fullmatch(cluster)
    if local is None and "://" not in cluster:
        raise UsageError(
            f"cluster {cluster!r}: give the address of a Dask scheduler, tcp://HOST:8786, or "
            "local:N for N processes of this machine"
        )
    with ExitStack() as stack:
        where = cluster if local is None else stack.enter_context(_local(local[1]))
        client = stack.enter_context(_connected(where))
        yield lambda ready, units: _results(client, ready, units)


def _local(count: str | None) -> LocalCluster:
    """Start single-threaded processes on this machine, without a dashboard."""
    try:
        return LocalCluster(
            n_workers=None if count is None else int(count),
            threads_per_worker=1,
            processes=True,
            memory_limit=0,  # a worker near a limit would pause, and never go on
            preload=[_PRELOAD],
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # not a port that others want
        )
    except RuntimeError as error:
        raise NoVerdictError(
            f"audit: the workers did not start ({error}); where a script asks for them, it has to "
            'do so below `if __name__ == "__main__":`, because they import it'
        ) from error


def _connected(where: str | LocalCluster) -> Client:
    try:
        return Client(where, set_as_default=False)
    except (OSError, ValueError) as error:
        raise NoVerdictError(f"audit: no Dask scheduler answers at {where}: {error}") from error


def _results(client: Client, ready: Ready, units: Sequence[Unit]) -> Iterator[UnitResult]:
    """Yield the results of units as they arrive; raise NoVerdictError if a unit has none."""
    if not units:
        return
    tasks = client.map(
        _unit_done,
        [unit.number for unit in units],
        job=ready.job.written(),
        digest=ready.digest,
        version=__version__,
        retries=_RETRIES,
        pure=False,
    )
    waiting = dict(zip(tasks, units, strict=True))
    del tasks
    try:
        for task, answer in _ended(client, list(waiting)):
            unit = waiting.pop(task)
            if not isinstance(answer, bytes):
                raise NoVerdictError(f"audit: {_reason(unit, answer)}")
            try:
                found = UnitResult.read(answer, ready.digest, unit)
            except ValueError as error:
                raise NoVerdictError(
                    f"audit: what a worker sent is not what {unit} found: {error}; workers need "
                    f"lipcert {__version__}, as it is here, and audit again"
                ) from error
            yield found
    finally:
        client.cancel(list(waiting))


def _ended(client: Client, tasks: list[Future[Any]]) -> Iterator[tuple[Future[Any], Any]]:
    """Yield tasks as they end, with a result or with what they raised."""
    ended = as_completed(tasks, loop=client.loop, with_results=True, raise_errors=False)
    tasks.clear()  # a result is held as long as its task is
    looked = seen = time.monotonic()
    while ended.count():
        if ended.has_ready():
            yield from ended.next_batch(block=False)
            continue
        time.sleep(_POLL_SECONDS)
        now = time.monotonic()
        if now < looked + _LOOK_SECONDS:
            continue
        looked = now
        if _has_workers(client):
            seen = now
        elif now > seen + _PATIENCE_SECONDS or client.status == "closed":
            raise NoVerdictError(
                f"audit: the cluster had no worker for {now - seen:.0f} s; start some, and "
                "continue from the results that --results DIR keeps"
            )


def _has_workers(client: Client) -> bool:
    try:
        return bool(client.nthreads())
    except (OSError, RuntimeError, ValueError):  # the scheduler does not answer
        return False


def _reason(unit: Unit, answer: Any) -> str:
    """Say why a unit has no result."""
    error = answer[1] if isinstance(answer, tuple) else answer
    if isinstance(error, LipCertError):
        return str(error)
    what = str(unit)
    if isinstance(error, KilledWorker):
        return (
            f"{what} was given up: {error.allowed_failures + 1} workers died while doing it, "
            f"the last at {error.last_worker.address}; if memory ran out, use a smaller "
            "--micro-batch or larger workers"
        )
    text = " ".join(str(error).split())
    if isinstance(error, CancelledError):
        return f"{what} was dropped ({text}); continue from the results that --results DIR keeps"
    return (
        f"{what} failed on the cluster ({type(error).__name__}: {text}); scheduler and workers "
        f"need lipcert[audit,cluster] {__version__}, as it is here"
    )


def _unit_done(number: int, *, job: bytes, digest: str, version: str) -> bytes | NoVerdictError:
    """On a worker: return the result of a unit as a line; or the error, if no retry can help."""
    try:
        with _ALONE, one_thread():
            ready = _prepared(job, digest, version)
            return audit_unit(ready, ready.units[number]).written(digest)
    except LipCertError as error:
        return NoVerdictError(f"worker {get_worker().address}: {error}")


@lru_cache(maxsize=1)
def _prepared(job: bytes, digest: str, version: str) -> Ready:
    """On a worker: prepare the job from the files that this machine sees."""
    if version != __version__:
        raise NoVerdictError(
            f"lipcert is {__version__} here, but {version} at the client; install the same version"
        )
    described = Job.read(job, "what the client sent")
    ready = prepare(described)
    if ready.digest != digest:
        read = ", ".join(filter(None, (described.model, described.data, described.trace)))
        raise NoVerdictError(
            f"what it reads is not what the client reads, byte for byte: {read}; copies need the "
            "same times of change (cp -p, rsync -a)"
        )
    return ready
