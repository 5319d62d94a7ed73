"""Recordings that do not show the whole run: no plain pass, in whatever form the report comes."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lipcert.audit.conclusion import _recording
from lipcert.audit.job import Job
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import AuditReport, Recording, Verdict
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.records import Declaration, Manifest, Step
from lipcert.audit.trace.writing import TraceWriter
from lipcert.cli.audit import _exit_code
from lipcert.errors import ExitCode, UsageError
from lipcert.settings.settings import Settings
from tests.audit.faults import report_of
from tests.audit.mechanism_runs import Way, recorded, settings
from tests.report.written import audit_written

pytestmark = pytest.mark.filterwarnings("ignore::lipcert.audit.trace.writing.PrivateDataWarning")
FLAT = settings(mechanism="gradient-clipping", clip_norm=0.5)


@pytest.mark.parametrize(
    ("recording", "says"),
    [
        (Recording(60, 60, closed=True), ""),
        (Recording(60, None, closed=True), ""),
        (Recording(30, 60, closed=True), ", of 30 of 60 declared steps"),
        (
            Recording(30, 60, closed=False),
            ", of 30 of 60 declared steps; the recording was not closed",
        ),
        (Recording(60, 60, closed=False), ", of 60 steps; the recording was not closed"),
        (Recording(30, None, closed=False), ", of 30 steps; the recording was not closed"),
    ],
)
def test_what_a_pass_is_of(recording: Recording, says: str) -> None:
    assert (str(recording), recording.is_whole) == (says, not says)


@pytest.mark.parametrize("declared", [None, 5])
def test_steps_are_those_that_every_rank_has(declared: int | None, tmp_path) -> None:
    manifest = Manifest({}, 2, {"w": (1,)}, declaration=Declaration(steps=declared))
    for rank, steps in ((0, 3), (1, 2)):
        writer = TraceWriter(tmp_path / "t", manifest, rank)
        for number in range(steps):
            writer.append(Step(rank, number, 1.0))
        writer.close() if rank == 0 else writer.abandon()
    trace, claims = read_trace(tmp_path / "t"), SimpleNamespace(settings=Settings(steps=9))
    ready = SimpleNamespace(recorded=SimpleNamespace(trace=trace), claims=claims)
    assert _recording(ready) == Recording(2, 9 if declared is None else 5, closed=False)


def cut(folder, steps: int):
    """As a killed process leaves it: the first so many steps, and no end."""
    path = folder / "steps-0.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[: steps + 1]))
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[AuditReport, AuditReport]:
    """The audit of a run of 12 steps that was killed after 10, without and with that being said."""
    folder = tmp_path_factory.mktemp("killed") / "t"
    ready = recorded(folder, Way(FLAT))
    cut(folder, 10)
    tensors = RecordedRun(ready.claims, read_trace(folder))
    ready = replace(ready, recorded=tensors)
    said = replace(ready, job=replace(ready.job, interrupted=True))
    return report_of(ready), report_of(said)


SAYS = "of 10 of 12 declared steps; the recording was not closed"


def test_a_recording_without_its_end_is_no_pass(killed: tuple[AuditReport, AuditReport]) -> None:
    report, _ = killed
    assert report.verdict is Verdict.PARTIAL
    assert report.reasons == (f"[LC318] pass, {SAYS}",)
    assert _exit_code(report) is ExitCode.NO_VERDICT
    assert _exit_code(replace(report, verdict=Verdict.EXCEEDED)) is ExitCode.NEGATIVE


def test_that_a_run_was_killed_can_be_said(killed: tuple[AuditReport, AuditReport]) -> None:
    _, report = killed
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())
    assert _exit_code(report) is ExitCode.HOLDS
    text = audit_written(report, "text")
    assert text.startswith(f"Pass, {SAYS}: ")


@pytest.mark.parametrize("form", ["text", "markdown", "junit", "sarif", "github"])
def test_every_format_says_so(form: str, killed: tuple[AuditReport, AuditReport]) -> None:
    shown = audit_written(killed[0], form)
    assert SAYS in " ".join(shown.split())
    if form == "junit":
        assert 'failures="0"' not in shown.partition("<testcase")[0]
    if form == "sarif":
        found = json.loads(shown)["runs"][0]["results"]
        assert {"LC318"} <= {item["ruleId"] for item in found if item["level"] == "error"}
    if form == "github":
        assert "::error" in shown


def test_only_a_recorded_run_can_be_interrupted() -> None:
    with pytest.raises(UsageError, match="--interrupted applies to a recorded run"):
        Job("model.onnx", Settings(), data="x.npz", interrupted=True)
