"""Whole audits by real processes: alone, side by side, killed, and under a launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lipcert.audit.job import Job, Worker
from lipcert.audit.records import AuditReport, Verdict
from lipcert.audit.run import audit, merged_report
from lipcert.errors import NoVerdictError
from lipcert.report.audit_json import audit_document
from lipcert.settings import Settings
from tests.models.shipped import digits, path_of

ROOT = Path(__file__).resolve().parents[2]
MODEL = path_of("digits_mlp")
EXAMPLES, UNIT = 120, 4
PATIENCE = 240.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "batches.npz"
    split = digits((64,))
    np.savez(path, x=split.images.numpy()[:EXAMPLES], y=split.labels.numpy()[:EXAMPLES])
    return path


def job_of(data: Path, **changes: object) -> Job:
    job = Job(str(MODEL), Settings(), data=str(data), unit_size=UNIT)
    return replace(job, **changes)  # type: ignore[arg-type]


def same(report: AuditReport | None) -> AuditReport:
    """All of it but for how long it took."""
    assert report is not None
    return replace(report, seconds=0.0)


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """What one process in its own folder reports."""
    return same(audit(job_of(data), folder=tmp_path_factory.mktemp("alone") / "work"))


def command(data: Path, folder: Path, *more: str) -> list[str]:
    words = ["audit", str(MODEL), "--data", str(data), "--work", str(folder), "--device", "cpu"]
    return [*words, "--unit-size", str(UNIT), "--format", "json", *more]


def environment(**variables: str) -> dict[str, str]:
    here = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LIPCERT_CACHE": "false"}
    return {**os.environ, **here, **variables}


def started(words: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lipcert", *words],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def results(folder: Path) -> int:
    return len(list((folder / "results").glob("[0-9]*.json")))


def test_without_a_folder_the_report_is_the_same(data: Path, undisturbed: AuditReport) -> None:
    """But for how norms were rounded: methods are chosen by time then."""
    alone = same(audit(job_of(data)))
    assert alone.verdict is Verdict.PASS
    assert (alone.examples, alone.units_done) == (EXAMPLES, EXAMPLES // UNIT)
    for ours, theirs in zip(alone.groups, undisturbed.groups, strict=True):
        assert ours.max_observed == pytest.approx(theirs.max_observed, rel=1e-5)
        assert ours.worst_example == theirs.worst_example


def test_how_work_is_cut_does_not_matter(
    data: Path, undisturbed: AuditReport, tmp_path: Path
) -> None:
    whole = same(audit(job_of(data, unit_size=1000), folder=tmp_path / "work"))
    assert whole.units == 1
    for ours, theirs in zip(whole.groups, undisturbed.groups, strict=True):
        assert ours.max_observed == pytest.approx(theirs.max_observed, rel=1e-5)
        assert ours.worst_example == theirs.worst_example
        assert sum(ours.histogram.counts.values()) == EXAMPLES


def test_only_worker_0_reports(data: Path, undisturbed: AuditReport, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    assert audit(job_of(data), folder=folder, worker=Worker(1, 2)) is None
    assert same(audit(job_of(data), folder=folder, worker=Worker(0, 2))) == undisturbed
    assert same(merged_report(folder)) == undisturbed


def test_merging_at_any_time(data: Path, undisturbed: AuditReport, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    audit(job_of(data), folder=folder)
    for path in (folder / "results").glob("*[13579].json"):
        path.unlink()
    half = merged_report(folder)
    assert half.verdict is Verdict.INCONCLUSIVE
    assert (half.units_done, half.examples) == (EXAMPLES // UNIT // 2, EXAMPLES // 2)
    assert same(audit(job_of(data), folder=folder)) == undisturbed


def test_a_bad_label_is_named_by_its_place_in_the_data(tmp_path: Path) -> None:
    split = digits((64,))
    labels = split.labels.numpy()[:40].copy()
    labels[29] = -1
    path = tmp_path / "batches.npz"
    np.savez(path, x=split.images.numpy()[:40], y=labels)
    with pytest.raises(NoVerdictError, match="example 29: -1 is no class"):
        audit(job_of(path))


def test_an_inadmissible_example_is_named_by_its_place_in_the_data(tmp_path: Path) -> None:
    split = digits((64,))
    x = split.images.numpy()[:40].copy()
    x[31, 5] = 1.5
    path = tmp_path / "batches.npz"
    np.savez(path, x=x, y=split.labels.numpy()[:40])
    report = same(audit(job_of(path)))
    assert report.verdict is Verdict.VIOLATION
    (check,) = [check for check in report.checks if check.code == "LC304"]
    assert "example 31 has the entry 1.5" in check.message


def killed_at_work(words: Sequence[str], folder: Path) -> bool:
    """Start a worker and kill it as soon as it has done a unit; False if it was done before."""
    worker, before = started(words), results(folder)
    deadline = time.monotonic() + PATIENCE
    while worker.poll() is None and results(folder) == before:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    return worker.returncode == -signal.SIGKILL


def without_time(document: dict[str, object]) -> dict[str, object]:
    return {name: member for name, member in document.items() if name != "seconds"}


def test_two_workers_of_a_launcher_take_over_from_one_that_was_killed(
    data: Path, undisturbed: AuditReport, tmp_path: Path
) -> None:
    """A kill in the middle of a unit; then one report, and it says what one process says.

    Many kills in a row are for the tests of the folder, whose workers start fast.
    """
    folder, out = tmp_path / "work", tmp_path / "report.json"
    assert killed_at_work(command(data, folder), folder)
    half = merged_report(folder)
    is_done = half.units_done == half.units
    assert half.verdict is (Verdict.PASS if is_done else Verdict.INCONCLUSIVE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "lipcert", *command(data, folder, "-o", str(out))],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "worker 0 of 2 reports" in done.stderr
    assert results(folder) == EXAMPLES // UNIT
    assert list((folder / "leases").glob("[0-9]*")) == []
    assert same(merged_report(folder)) == undisturbed
    found = json.loads(out.read_text(encoding="utf-8"))
    expected = json.loads(json.dumps(audit_document(undisturbed)))
    assert without_time(found) == without_time(expected)
