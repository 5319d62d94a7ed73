"""Linear algebra has one thread while LipCert computes, and the caller's number afterwards."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from lipcert import Settings, analyze, load_model
from lipcert.analysis.bounded import bounded
from lipcert.analysis.certificate import certify
from lipcert.audit import run as audit_run
from lipcert.audit.job import Job
from lipcert.process.threads import one_thread, worker_pool
from lipcert.search import norms
from lipcert.training import calibration
from tests.training.runs import private_run

MODEL = Path(__file__).resolve().parents[2] / "models" / "digits_mlp.onnx"
CALLERS = 2
Numbers = set[int]


def blas_threads() -> Numbers:
    return {item["num_threads"] for item in threadpool_info() if item["user_api"] == "blas"}


def set_blas_threads(number: int) -> None:
    """As the environment would: by a thread that has ended, for a living one owns the setting."""
    thread = threading.Thread(target=lambda: threadpool_limits(number, user_api="blas"))
    thread.start()
    thread.join()


@pytest.fixture(autouse=True)
def _caller():
    """The caller's setting; BLAS may have been built for one thread only."""
    set_blas_threads(CALLERS)
    if blas_threads() != {CALLERS}:
        pytest.skip("the linear algebra of this machine has one thread anyway")
    yield
    found = blas_threads()
    set_blas_threads(1)
    assert found == {CALLERS}


class Watch:
    """A function that tells how many threads there were when it was called, and by whom."""

    def __init__(self, function) -> None:
        self.function = function
        self.seen: Numbers = set()
        self.threads: Numbers = set()

    def __call__(self, *words, **named):
        self.seen |= blas_threads()
        self.threads.add(threading.get_ident())
        return self.function(*words, **named)

    @property
    def had_workers(self) -> bool:
        return bool(self.threads - {threading.get_ident()})


def test_an_analysis_has_one_thread_in_its_workers_and_around_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norm, around = Watch(norms.proposals), Watch(lambda *_: None)
    monkeypatch.setattr(norms, "proposals", norm)
    bounded(load_model(MODEL), Settings(), around)
    assert norm.seen == around.seen == {1}
    assert norm.had_workers


def test_a_certificate_is_found_and_checked_with_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim, check = Watch(norms.proved_claim), Watch(sys.modules[certify.__module__].check)
    monkeypatch.setattr(norms, "proved_claim", claim)
    monkeypatch.setattr(f"{certify.__module__}.check", check)
    certify(load_model(MODEL), Settings())
    assert claim.seen == check.seen == {1}
    assert claim.had_workers


def test_an_import_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    assemble = Watch(sys.modules["lipcert.importer.load"].assemble)
    monkeypatch.setattr("lipcert.importer.load.assemble", assemble)
    load_model(MODEL)
    assert assemble.seen == {1}


def test_an_audit_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    unit, job = Watch(audit_run.audit_unit), Job(str(MODEL), Settings(), attack_steps=1, limit=4)
    monkeypatch.setattr(audit_run, "audit_unit", unit)
    audit_run.audit(job)
    assert unit.seen == {1}


def test_a_private_run_is_bounded_with_one_thread_and_trains_with_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Watch(sys.modules["lipcert.analysis.bounded"].find_norms)
    monkeypatch.setattr("lipcert.analysis.bounded.find_norms", found)
    assert calibration.bounded.__module__ == "lipcert.analysis.bounded"
    with private_run():
        assert blas_threads() == {CALLERS}
    assert found.seen == {1}


def test_an_exception_leaves_the_callers_setting() -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        analyze(load_model(MODEL), Settings(), failing)
    assert blas_threads() == {CALLERS}


def test_an_error_cancels_the_work_that_waits() -> None:
    done: list[int] = []
    cancelled = threading.Event()

    def work(number: int) -> None:
        cancelled.wait(60)
        done.append(number)

    def failing() -> None:
        with worker_pool() as pool:
            futures = [pool.submit(work, number) for number in range(50)]
            futures[-1].add_done_callback(lambda _: cancelled.set())
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        failing()
    assert len(done) < 10


def test_workers_have_one_thread_of_every_library() -> None:
    with worker_pool() as pool:
        infos = list(pool.map(lambda _: threadpool_info(), range(8)))
    assert {item["num_threads"] for info in infos for item in info} == {1}


def test_openmp_of_the_caller_is_left_alone() -> None:
    libraries = ThreadpoolController().select(user_api="openmp")
    with libraries.limit(limits=CALLERS), one_thread():
        assert {item["num_threads"] for item in libraries.info()} == {CALLERS}


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_overlapping_contexts_of_two_threads_restore_the_setting(first_ends_first: bool) -> None:
    """Whichever ends last, the number of the caller stands, and not the 1 that one of them saw."""
    begun, may_end = threading.Event(), threading.Event()

    def other() -> None:
        with one_thread():
            begun.set()
            may_end.wait(60)

    thread = threading.Thread(target=other)
    if first_ends_first:
        with one_thread():
            thread.start()
            begun.wait()
    else:
        thread.start()
        begun.wait()
        with one_thread():
            assert blas_threads() == {1}
            may_end.set()
            thread.join()
    may_end.set()
    thread.join()
    assert blas_threads() == {CALLERS}


def test_nested_contexts_end_with_the_outermost() -> None:
    with one_thread():
        with one_thread():
            pass
        assert blas_threads() == {1}


def test_the_checker_alone_has_one_thread_and_knows_no_threadpoolctl() -> None:
    code = (
        "import sys\n"
        "sys.modules['threadpoolctl'] = None\n"
        "from lipcert.core.main import main\n"
        "code = main(['no-such-file', '--model', 'none.onnx'])\n"
        "del sys.modules['threadpoolctl']\n"
        "import numpy, threadpoolctl\n"
        "print(code, *{item['num_threads'] for item in threadpoolctl.threadpool_info()})\n"
    )
    free = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=free
    )
    assert done.stdout.split() == ["3", "1"], done.stderr
