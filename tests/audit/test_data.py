"""Audits of data in several forms: the same numbers, a few examples at a time, changes noticed."""

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from lipcert.audit.job import Job
from lipcert.audit.prepared_job import _inputs, prepare
from lipcert.audit.recorder import Recorder
from lipcert.audit.records import AuditReport, Modes, Verdict
from lipcert.audit.run import audit
from lipcert.audit.unit_results import Family
from lipcert.errors import NoVerdictError
from lipcert.report.audit_json import audit_document, audit_from_document
from lipcert.settings.settings import Settings
from tests.audit.test_named_examples import audited as audited_run
from tests.audit.test_replay import claims, examples, replayer
from tests.models.shipped import module, path_of

MODEL = path_of("digits_mlp")
COUNT = 90
DATA = examples("digits_mlp", COUNT)


class Streamed(IterableDataset[object]):
    def __iter__(self):
        yield from zip(DATA.x, DATA.y, strict=True)


def written(folder):
    np.savez(folder / "data.npz", x=DATA.x, y=DATA.y)
    return folder / "data.npz"


def job(data: object, **changes: object) -> Job:
    made = Job(str(MODEL), Settings(), data=str(data), unit_size=20, watch_values=False)
    return replace(made, **changes)  # type: ignore[arg-type]


def alike(report: AuditReport | None) -> AuditReport:
    """All of it but where the examples came from, in how many units, and how long it took."""
    modes = Modes("", None, 0)
    assert report.usefulness is not None  # which names the examples
    return replace(report, seconds=0.0, modes=modes, units=0, units_done=0, usefulness=None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    """Of one .npz file."""
    report = audit(job(written(tmp_path_factory.mktemp("npz"))))
    assert report.verdict is Verdict.PASS
    assert report.modes.data_sha256_of == "the file"
    assert audit_from_document(audit_document(report)) == report
    return report


@pytest.mark.nightly
def test_objects_are_audited_as_they_are(whole: AuditReport) -> None:
    assert alike(audit(job("digits"), data=(DATA.x, DATA.y))) == alike(whole)
    streamed = audit(job("a stream"), data=Streamed())
    assert alike(streamed) == alike(whole)
    assert (streamed.units, streamed.modes.data) == (1, "a stream")
    short = audit(job("a stream", limit=50), data=Streamed())
    assert short.examples == 50


def test_results_are_those_of_the_contents_of_every_input(tmp_path) -> None:
    """Or an audit would go on with what was found of other data, claims or runs."""
    ready = prepare(job(written(tmp_path)))
    digests = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (MODEL, tmp_path / "data.npz")]
    certified, run = replace(ready.job, certificate=ready.job.data), SimpleNamespace(head="head")
    found = _inputs(ready.model, certified, ready.identity, run)  # type: ignore[arg-type]
    expected = dict(zip(("model", "data"), digests, strict=True))
    assert found == {**expected, "certificate": digests[1], "trace": "head"}


def test_a_stream_without_an_example_is_no_pass() -> None:
    report = audit(job("nothing"), data=Nothing())
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any("LC300" in reason for reason in report.reasons)


class Nothing(IterableDataset[object]):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("stop", [COUNT, None])
def test_a_micro_batch_is_all_that_a_replay_holds(stop: int | None) -> None:
    asked = []

    class Counted:
        def read(self, start: int, stop: int):
            asked.append((start, stop))
            return DATA.read(start, stop)

    found = replayer(claims("digits_mlp"), micro_batch=8).replay(Counted(), 3, stop)  # type: ignore[arg-type]
    assert found.examples == COUNT - 3
    assert {tally.examples for tally in found.tallies[Family.GRADIENT].values()} == {COUNT - 3}
    assert max(stop - start for start, stop in asked) == 8
    assert [start for start, _ in asked][: COUNT // 8] == list(range(3, COUNT, 8))[: COUNT // 8]


def test_images_of_integers_are_not_rescaled(tmp_path) -> None:
    path = tmp_path / "bytes.npz"
    np.savez(path, x=(255 * DATA.x[:4]).astype(np.uint8), y=DATA.y[:4])
    settings = Settings(input_box=(0.0, 1.0), input_norm=None)
    report = audit(job(path, settings=settings))
    assert report.verdict is Verdict.VIOLATION
    (found,) = [check for check in report.checks if check.code == "LC304"]
    assert "4 of 4 examples lie outside" in found.message
    assert found.message.endswith("they are stored as uint8, and nothing is rescaled")


def test_files_are_those_that_the_run_states(tmp_path) -> None:
    path = written(tmp_path)
    for given, other in ((MODEL, path), (path, MODEL)):
        model = module("digits_mlp", torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        folder = tmp_path / given.stem
        with Recorder(folder, model, optimizer, model_file=given) as recorder:
            recorder.declare(data_sha256=hashlib.sha256(other.read_bytes()).hexdigest())
            optimizer.step()
        checks = audit(job(path, trace=str(folder))).checks
        found = [check.message for check in checks if check.code == "LC319"]
        digests = [hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in (path, MODEL)]
        assert len(found) == 2 * (given is path)
        assert all(digest in message for digest in digests for message in found)


def test_what_cannot_be_looked_up_is_no_data_of_a_run(tmp_path) -> None:
    audited_run(tmp_path / "run", None)
    with pytest.raises(NoVerdictError, match="can only be read in order"):
        prepare(job("a stream", trace=str(tmp_path / "run")), examples=Streamed())
