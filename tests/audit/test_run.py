"""Whole audits: at once, in pieces, interrupted, and merged from shards."""

from dataclasses import replace
from pathlib import Path

import pytest

from lipcert.audit.job import Job, Shard
from lipcert.audit.records import AuditReport, Verdict
from lipcert.audit.run import audit, audit_shard, merged_report
from lipcert.settings.settings import Settings
from tests.models.shipped import path_of

pytestmark = pytest.mark.usefixtures("prepared_once")
MODEL = path_of("digits_mlp")
EXAMPLES, UNIT = 120, 4
UNITS = EXAMPLES // UNIT


def job_of(data: Path, **changes: object) -> Job:
    job = Job(str(MODEL), Settings(), data=str(data), unit_size=UNIT)
    return replace(job, **changes)  # type: ignore[arg-type]


def same(report: AuditReport) -> AuditReport:
    """All of it but for how long it took."""
    return replace(report, seconds=0.0)


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """What one process in its own folder reports."""
    return same(audit(job_of(data), results=tmp_path_factory.mktemp("alone") / "work"))


def written(folder: Path) -> dict[str, int]:
    """When each result was."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "results").glob("*.json")}


def test_how_work_is_cut_does_not_matter(
    data: Path, undisturbed: AuditReport, tmp_path: Path
) -> None:
    whole = same(audit(job_of(data, unit_size=1000), results=tmp_path / "work"))
    assert whole.units == 1
    for ours, theirs in zip(whole.groups, undisturbed.groups, strict=True):
        assert ours.max_observed == pytest.approx(theirs.max_observed, rel=1e-5)
        assert ours.worst_example == theirs.worst_example
        assert sum(ours.histogram.counts.values()) == EXAMPLES


def test_an_interrupted_audit_goes_on(data: Path, undisturbed: AuditReport, tmp_path: Path) -> None:
    folder = tmp_path / "work"

    def interrupting(_: str, done: int, total: int) -> None:
        if (done, total) == (7, UNITS):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(job_of(data), results=folder, observe=interrupting)
    before = written(folder)
    assert len(before) == 7
    assert merged_report(folder).verdict is Verdict.INCONCLUSIVE
    assert same(audit(job_of(data), results=folder)) == undisturbed
    after = written(folder)
    assert len(after) == UNITS
    assert before.items() <= after.items()


def test_shards_are_merged_from_any_folder_and_at_any_time(
    data: Path, undisturbed: AuditReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    monkeypatch.chdir(data.parent)
    relative = job_of(Path(data.name))
    assert audit_shard(relative, Shard(1, 4), folder) == 8
    assert sorted(written(folder)) == sorted(f"{number}.json" for number in range(1, UNITS, 4))
    monkeypatch.chdir(tmp_path)
    part = merged_report(folder)
    assert part.verdict is Verdict.INCONCLUSIVE
    assert (part.units_done, part.examples) == (8, 8 * UNIT)
    assert any("LC318" in reason for reason in part.reasons)
    for index in (0, 2, 3):
        audit_shard(job_of(data), Shard(index, 4), folder)
    assert audit_shard(job_of(data), Shard(99, 100), folder) == 0
    assert same(merged_report(folder)) == undisturbed
