"""The trace of a private run: without its data unless asked for, and audited with the data set."""

from pathlib import Path

import numpy as np
import pytest

from lipcert.audit.job import Job
from lipcert.audit.records import AuditReport, Verdict
from lipcert.audit.run import audit
from lipcert.audit.trace.reading import read_trace
from lipcert.settings.settings import Settings
from tests.training.runs import EXAMPLES, data, private_run, train


def audited(run: Path, file: Path | None) -> AuditReport:
    certificate = str(run / "model.lipcert.json")
    job = Job(
        str(run / "model.onnx"),
        Settings(),
        certificate=certificate,
        trace=str(run / "trace"),
        data=None if file is None else str(file),
    )
    report = audit(job)
    assert report is not None
    return report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private") / "run"
    with private_run(folder, record_data=False) as private:
        train(private)
    return folder


def test_the_data_are_not_in_the_trace(run: Path) -> None:
    steps = list(read_trace(run / "trace").steps())
    batches = [batch for step in steps for batch in step.batches if batch.examples]
    assert batches
    assert all(batch.tensors is None and batch.name is not None for batch in batches)


def test_it_is_audited_with_the_data_set(run: Path, tmp_path: Path) -> None:
    """Of norm 1 up to rounding, so that examples were drawn into the ball on their way."""
    x, y = (tensor.numpy() for tensor in data().tensors)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    steps = list(read_trace(run / "trace").steps())
    assert any(batch.name.drawn for step in steps for batch in step.batches if batch.name)
    report = audited(run, tmp_path / "data.npz")
    assert report.verdict is Verdict.PASS, report.reasons
    assert report.notes == ()
    assert report.examples == sum(batch.examples for step in steps for batch in step.batches)
    assert {"contribution", "agreement"} <= {check.name for check in report.checks}


def test_without_the_data_set_it_says_what_is_missing(run: Path) -> None:
    report = audited(run, None)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any("--data FILE" in reason for reason in report.reasons)
    assert {"schedule", "noise", "seed-reuse"} <= {check.name for check in report.checks}
    assert all(check.verdict is Verdict.PASS for check in report.checks)


def test_other_data_are_replayed_at_every_recorded_set_of_weights(
    run: Path, tmp_path: Path
) -> None:
    x, y = (tensor.numpy() for tensor in data(seed=5).tensors)
    np.savez(tmp_path / "test.npz", x=x, y=y)
    report = audited(run, tmp_path / "test.npz")
    assert report.examples % EXAMPLES == 0
    assert any("are not those that the network read" in text for text in report.notes)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert [reason[:7] for reason in report.reasons] == ["[LC318]"]


def test_without_the_key_the_data_set_is_no_pass(run: Path, tmp_path: Path) -> None:
    x, y = (tensor.numpy() for tensor in data().tensors)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    key = run / "trace.key"
    kept = key.rename(tmp_path / "key")
    try:
        report = audited(run, tmp_path / "data.npz")
    finally:
        kept.rename(key)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any("put it back" in reason for reason in report.reasons)
