"""Audits on a real cluster of processes: workers that are killed, and such that must be refused."""

import json
import logging
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import dask
import distributed.utils
import numpy as np
import pytest
from distributed import Client, LocalCluster

from lipcert.audit import cluster as module
from lipcert.audit.cluster import workers
from lipcert.audit.job import Job
from lipcert.audit.prepared_job import prepare
from lipcert.audit.records import AuditReport, Verdict
from lipcert.audit.run import audit
from lipcert.errors import NoVerdictError, UsageError
from lipcert.report.audit_json import audit_document
from lipcert.settings.settings import Settings
from tests.audit.deadly import Examples
from tests.audit.test_run import same, written
from tests.audit.test_unit_results import JOB, result_of
from tests.audit.test_unit_results import UNITS as UNITS_OF
from tests.commands import ROOT, lipcert, printed_by
from tests.models.shipped import path_of

pytestmark = pytest.mark.usefixtures("prepared_once")
UNITS = 20


@pytest.fixture(scope="module")
def client():
    """Two workers, forked from a process that has imported what is slow to import."""
    config = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.scheduler.allowed-failures": 1,
    }
    with dask.config.set(config):
        distributed.utils.get_mp_context().set_forkserver_preload(["lipcert.audit.cluster"])
        with (
            LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                silence_logs=logging.ERROR,
            ) as local,
            Client(local, set_as_default=False) as found,
        ):
            yield found
    # beside threads no model is read in a fork; a client without a scheduler leaves one, too
    distributed.utils._offload_executor.shutdown()
    distributed.utils._offload_executor = ThreadPoolExecutor(1)
    for _, runner in list(distributed.utils.LoopRunner._all_loops.values()):
        runner.stop()


def job_of(data: object) -> Job:
    return Job(str(path_of("digits_mlp")), Settings(), data=str(data), unit_size=6)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """What one process reports."""
    return same(audit(job_of(data), results=tmp_path_factory.mktemp("alone")))


@pytest.mark.nightly
def test_a_killed_worker_loses_its_unit_and_nothing_else(
    undisturbed: AuditReport, client: Client, data, tmp_path
) -> None:
    """Another does that unit; then an audit that is interrupted goes on from its results."""
    killed: list[str] = []

    def killing(_: str, done: int, total: int) -> None:
        if total == UNITS and not killed:
            pids = client.run(os.getpid)
            killed.extend(worker for worker, tasks in client.processing().items() if tasks)
            del killed[1:]
            os.kill(pids[killed[0]], signal.SIGKILL)
        if (done, total) == (UNITS - 5, UNITS):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(job_of(data), cluster=client, results=tmp_path, observe=killing)
    before = written(tmp_path)
    assert len(before) == UNITS - 5
    assert same(audit(job_of(data), cluster=client, results=tmp_path)) == undisturbed
    assert killed[0] not in client.nthreads()
    assert before.items() <= written(tmp_path).items()
    assert len(written(tmp_path)) == UNITS
    assert not client.processing() or not any(client.processing().values())


@pytest.mark.nightly
def test_a_unit_that_kills_every_worker_is_given_up(client: Client) -> None:
    with pytest.raises(NoVerdictError, match="was given up: 2 workers died while doing it"):
        audit(job_of("tests.audit.deadly:Examples"), cluster=client)


@pytest.mark.nightly
def test_what_a_worker_sees_otherwise_is_refused(
    client: Client, data, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "batches.npz"
    other.write_bytes(data.read_bytes())
    ready = prepare(job_of(other))
    with workers(client) as work:
        with np.load(other) as found:
            np.savez(other, x=0.5 * found["x"], y=found["y"])
        with pytest.raises(NoVerdictError, match=r"worker tcp://.*not what the client reads"):
            list(work(ready, ready.units[:1]))
        gone = replace(ready, job=replace(ready.job, model="/gone/net.onnx"))
        with pytest.raises(NoVerdictError, match=r"worker tcp://.*/gone/net\.onnx"):
            list(work(gone, ready.units[:1]))
        monkeypatch.setattr(module, "__version__", "9.9")
        with pytest.raises(NoVerdictError, match=r"9\.9 at the client; install the same version"):
            list(work(ready, ready.units[:1]))


def test_what_a_worker_sends_is_the_result_of_its_unit_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As results in a folder are: no other unit, kind or range, and nothing that was changed."""
    right = [result_of(unit).written("digest") for unit in UNITS_OF[:2]]
    ready = SimpleNamespace(job=JOB, digest="digest")
    client = SimpleNamespace(map=lambda *_, **__: ["0", "1"], cancel=list)

    def done(*answers: str) -> int:
        ended = zip(("0", "1"), answers, strict=True)
        monkeypatch.setattr(module, "_ended", lambda *_: ended)
        with workers(client) as work:  # type: ignore[arg-type]
            return len(list(work(ready, UNITS_OF[:2])))  # type: ignore[arg-type]

    assert done(*right) == 2
    for answers, why in (
        ((right[1], right[0]), "it is the result of unit 1"),
        ((right[0], right[0]), "it is the result of unit 0"),
        ((right[0], result_of(UNITS_OF[1]).written("other")), "belongs to another audit"),
        ((right[0], right[1].replace(b'"examples":4', b'"examples":3')), "was changed"),
    ):
        with pytest.raises(NoVerdictError, match=f"what a worker sent is not what unit .*{why}"):
            done(*answers)


class Queue(str):
    """A cluster as dask-jobqueue has them, whose workers are there already."""

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None: ...

    def scale(self, jobs: int) -> None: ...


def test_the_page_on_audits_from_python(
    client: Client, data, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    part = page.split("<!-- cluster from Python -->")[1].split("<!-- end -->")[0]
    (source,) = re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL)
    queue = SimpleNamespace(SLURMCluster=lambda **_: Queue(client.scheduler.address))
    monkeypatch.setitem(sys.modules, "dask_jobqueue", queue)
    (tmp_path / "model.onnx").symlink_to(path_of("digits_mlp"))
    (tmp_path / "train.npz").symlink_to(data)
    assert printed_by(source, tmp_path) == "pass\n"
    assert len(written(tmp_path / "audit")) == 1


def test_nobody_to_do_it_is_an_error_and_no_wait(
    data, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.1)
    scheduler = {"dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(n_workers=0, dashboard_address=None, scheduler_kwargs=scheduler) as empty,
        pytest.raises(NoVerdictError, match="the cluster had no worker"),
    ):
        audit(job_of(data), cluster=empty.scheduler_address)
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.1s"}),
        pytest.raises(NoVerdictError, match="no Dask scheduler answers at tcp:"),
    ):
        audit(job_of(data), cluster="tcp://127.0.0.1:1")


def test_what_cannot_be_asked_of_a_cluster(data, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("here", "local:0", "local:two"):
        with pytest.raises(UsageError, match="address of a Dask scheduler"):
            audit(job_of(data), cluster=word)
    with pytest.raises(UsageError, match="examples cannot be passed to workers"):
        audit(job_of("digits"), cluster="local", data=Examples())
    with pytest.raises(UsageError, match="leave the cluster out"):
        audit(job_of(data), cluster="local", compare_speed=True)
    monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(NoVerdictError, match=r"pip install 'lipcert\[cluster\]'"):
        audit(job_of(data), cluster="local")


@pytest.mark.nightly
def test_the_command_line_starts_workers_of_its_own(
    client: Client, data, undisturbed: AuditReport
) -> None:
    job = job_of(data)
    words = ["audit", job.model, "--data", str(data), "--unit-size", "6", "--device", "cpu"]
    done = lipcert([*words, "--cluster", "local:1", "--format", "json"])
    assert done.exit_code == 0, done.stderr
    found, expected = json.loads(done.stdout), json.loads(json.dumps(audit_document(undisturbed)))
    assert {**found, "seconds": 0.0} == {**expected, "seconds": 0.0}
    assert undisturbed.verdict is Verdict.PASS
