"""A folder of work under workers that are killed, that race, and that do not belong to it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lipcert.audit.folder import WorkFolder
from lipcert.audit.unit_result import total_of
from lipcert.errors import NoVerdictError
from tests.audit.folder_worker import JOB, UNITS, result_of

KILLS = 10


def started(folder: Path, seconds: float = 0.02) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tests.audit.folder_worker", str(folder), str(seconds)]
    return subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"})


def results(folder: Path) -> int:
    return len(list((folder / "results").glob("*.json")))


def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    """Every worker is killed soon after its first result; then two finish what is left."""
    chance = random.Random(5)
    deadline = time.monotonic() + 240
    for _ in range(KILLS):
        before = results(tmp_path)
        worker = started(tmp_path)
        while results(tmp_path) == before:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.04))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        assert before < results(tmp_path) < len(UNITS)
    last = [started(tmp_path) for _ in range(2)]
    assert [worker.wait(timeout=120) for worker in last] == [0, 0]
    found = WorkFolder.opened(tmp_path, JOB, "digest").results()
    assert total_of(found) == total_of(map(result_of, UNITS))
    assert list((tmp_path / "leases").glob("[0-9]*")) == []  # offers that were cut short may lie


def test_every_unit_is_claimed_until_it_has_a_result(tmp_path: Path) -> None:
    folder = WorkFolder.opened(tmp_path, JOB, "digest")
    seen = []
    for unit in folder.claimed(UNITS, first=7):
        seen.append(unit)
        folder.keep(unit, result_of(unit))
    assert seen[0] == UNITS[7]
    assert sorted(unit.number for unit in seen) == [unit.number for unit in UNITS]
    assert list(folder.claimed(UNITS)) == []
    assert list((tmp_path / "leases").iterdir()) == []


def test_a_lease_is_respected_while_its_holder_lives_and_taken_over_after(tmp_path: Path) -> None:
    folder = WorkFolder.opened(tmp_path, JOB, "digest")
    first, second = UNITS[:2]
    assert next(folder.claimed((first,))) == first  # this process holds it now
    assert next(folder.claimed((first, second))) == second
    lease = tmp_path / "leases" / str(first.number)
    _orphan(lease)
    assert next(folder.claimed((first,))) == first


def _orphan(lease: Path) -> None:
    """As if its holder had died."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = lease.read_text(encoding="utf-8").split()[0]
    lease.write_text(f"{host} {ended.pid}", encoding="utf-8")


def test_a_worker_that_dies_between_result_and_lease_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = WorkFolder.opened(tmp_path, JOB, "digest")
    one = UNITS[:1]
    assert next(folder.claimed(one)) == one[0]
    lease = tmp_path / "leases" / str(one[0].number)
    content = lease.read_text(encoding="utf-8")
    folder.keep(one[0], result_of(one[0]))
    lease.write_text(content, encoding="utf-8")
    assert list(folder.claimed(one)) == []
    assert lease.exists()  # its holder lives, and may be about to give it back
    _orphan(lease)
    assert list(folder.claimed(one)) == []
    assert not lease.exists()


def test_an_old_lease_of_another_machine_expires(tmp_path: Path) -> None:
    folder = WorkFolder.opened(tmp_path, JOB, "digest")
    lease = tmp_path / "leases" / str(UNITS[0].number)
    lease.write_text("elsewhere 1", encoding="utf-8")
    long_ago = time.time() - 3600
    os.utime(lease, (long_ago, long_ago))
    assert next(folder.claimed(UNITS[:1])) == UNITS[0]


def test_doing_a_unit_twice_counts_once(tmp_path: Path) -> None:
    folder = WorkFolder.opened(tmp_path, JOB, "digest")
    for unit in (*UNITS[:3], UNITS[1]):
        folder.keep(unit, result_of(unit))
    assert total_of(folder.results()) == total_of(map(result_of, UNITS[:3]))
    assert total_of([*folder.results(), result_of(UNITS[0])]) == total_of(folder.results())


def test_other_work_is_refused(tmp_path: Path) -> None:
    folder = WorkFolder.opened(tmp_path, JOB, "digest")
    folder.keep(UNITS[0], result_of(UNITS[0]))
    with pytest.raises(NoVerdictError, match="belongs to another audit"):
        WorkFolder.opened(tmp_path, JOB, "another").results()
    result = tmp_path / "results" / "0.json"
    result.write_text(result.read_text(encoding="utf-8")[:-10], encoding="utf-8")
    with pytest.raises(NoVerdictError, match=r"0\.json is damaged"):
        folder.results()


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoVerdictError, match="no folder of work"):
        WorkFolder.job_in(tmp_path / "absent")
    assert WorkFolder.job_in(WorkFolder.opened(tmp_path, JOB, "d").path) == JOB
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NoVerdictError, match="cannot use the folder"):
        WorkFolder.opened(file, JOB, "d")
