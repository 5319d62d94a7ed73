"""A trace without its data: what is in it, and what an audit makes of it with the data and without.

The runs are those of the planted faults; the data set is given to the audit, and not in the trace.
"""

import stat
from dataclasses import replace

import numpy as np
import pytest
import torch

from lipcert.audit.checks import Checked, check_recorded_run
from lipcert.audit.recorder import Recorder
from lipcert.audit.trace.blobs import ExamplesKey, key_path
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.redaction import redact
from lipcert.errors import UsageError
from lipcert.gradient_stats.examples import Examples
from tests.audit.checks.runs import Network, Plan, bad, examples, recorded, recorded_of

NAMED = Plan(store_data=False)


def dataset(*, order: np.ndarray | None = None, dtype: type = np.float32) -> Examples:
    """That of the runs; order: another one."""
    x, y = (item.numpy() for item in examples(np.random.default_rng(7)))
    if order is not None:
        x, y = x[order], y[order]
    return Examples(x.astype(dtype), y, "data.npz")


def contents(folder) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def audited(folder, data: Examples | None, plan: Plan = NAMED) -> Checked:
    claims, trace = recorded(folder, plan)
    return check_recorded_run(claims, trace, "cpu", data)


def names(checked: Checked) -> set[str]:
    return {report.name for report in checked.reports}


def test_no_example_is_in_the_trace_unless_asked_for(tmp_path) -> None:
    for stores in (False, True):
        folder = tmp_path / f"{stores}"
        recorded(folder, replace(NAMED, store_data=stores))
        written = contents(folder)
        rows = [row.tobytes() for row in dataset().x]
        assert any(row in written for row in rows) == stores
        assert key_path(folder).exists() != stores


def test_without_the_data_everything_else_is_checked_and_the_rest_is_said(tmp_path) -> None:
    found = audited(tmp_path / "t", None)
    assert bad(found) == set()
    assert names(found) == {
        "trace-integrity",
        "schedule",
        "noise",
        "release",
        "seed-reuse",
        "weight-constraint",
        "chain",
    }
    (replay,) = [text for text in found.not_done if text.startswith("replay:")]
    assert "3 steps are not in the trace" in replay
    assert "--data FILE" in replay
    assert {text.partition(":")[0] for text in found.not_done} == {
        "epsilon",
        "replay",
        "contribution",
        "agreement",
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_with_the_data_it_is_as_if_they_had_been_stored(tmp_path, dtype: type) -> None:
    named = audited(tmp_path / "n", dataset(dtype=dtype))
    stored = audited(tmp_path / "s", None, replace(NAMED, store_data=True))
    assert named.not_done == stored.not_done == ()

    def compared(checked: Checked) -> list[tuple[object, ...]]:
        return [
            (report.code, report.name, report.verdict, report.measured, report.expected)
            for report in checked.reports
        ]

    assert compared(named) == compared(stored)


def test_faults_are_found_through_the_data(tmp_path) -> None:
    found = audited(tmp_path / "t", dataset(), replace(NAMED, divisor=1.0))
    assert bad(found) == {("LC312", "agreement")}


def test_replayed_examples_are_those_of_the_indices(tmp_path) -> None:
    claims, trace = recorded(tmp_path / "t", replace(NAMED, micro=3))
    data, graph = dataset(), claims.engine.graph
    steps = {f"step {step.number}": step for step in trace.steps()}
    known = recorded_of(trace, graph, data)
    assert list(known.batch_sizes) == ["step 0", "step 4", "step 8"]
    for name, count in known.batch_sizes.items():
        index = np.concatenate([batch.index for batch in steps[name].batches])
        found = known.examples(name)
        assert len(found) == count == len(index)
        assert np.array_equal(found.x, data.x[index])
        assert np.array_equal(found.y, data.y[index])
        assert found.x.dtype == np.float32
    assert recorded_of(trace, graph).batch_sizes == {}


@pytest.mark.parametrize(
    "data",
    [
        dataset(order=np.random.default_rng(1).permutation(300)),
        dataset(order=np.arange(100)),
        replace(dataset(), y=(dataset().y + 1) % 3),
        replace(dataset(), x=np.nextafter(dataset().x, np.float32(0.0))),
    ],
    ids=["another order", "too few", "other labels", "other inputs"],
)
def test_other_data_are_not_taken_for_those_of_the_run(tmp_path, data: Examples) -> None:
    found = audited(tmp_path / "t", data)
    assert bad(found) == set()
    (replay,) = [text for text in found.not_done if text.startswith("replay:")]
    assert "are not those that the network read" in replay
    assert not names(found) & {"contribution", "agreement"}


def test_examples_that_were_changed_on_their_way_are_said(tmp_path) -> None:
    """At one step, as by a random transform."""
    changed = replace(NAMED, prepared=lambda x, step: x.flip(1) if step == 4 else x)
    found = audited(tmp_path / "t", dataset(), changed)
    assert any("at 1 of 3 steps" in text for text in found.not_done)
    assert {"contribution", "agreement"} <= names(found)
    assert bad(found) == set()


def test_without_the_key_nothing_is_believed(tmp_path) -> None:
    claims, trace = recorded(tmp_path / "t", NAMED)
    data, path, graph = dataset(), key_path(tmp_path / "t"), claims.engine.graph
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    right = path.read_text()
    assert recorded_of(trace, graph, data).gap is None
    for wrong in (None, "00" * 32 + "\n", "no key"):
        path.unlink()
        if wrong is not None:
            path.write_text(wrong)
        again = read_trace(tmp_path / "t")
        gap = recorded_of(again, graph, data).gap
        assert str(path) in gap
        path.write_text(right)


def test_the_key_is_not_in_the_trace_and_names_say_nothing_without_it(tmp_path) -> None:
    recorded(tmp_path / "a", NAMED)
    recorded(tmp_path / "b", NAMED)
    secret = key_path(tmp_path / "a").read_text().strip()
    assert secret.encode() not in contents(tmp_path / "a")
    assert bytes.fromhex(secret) not in contents(tmp_path / "a")
    first, second = (
        [batch.name.hmac for step in read_trace(tmp_path / t).steps() for batch in step.batches
         if batch.name is not None]
        for t in ("a", "b")
    )  # fmt: skip
    assert len(first) == len(second) == 3
    assert not set(first) & set(second)  # of the same examples


def test_a_trace_keeps_its_key(tmp_path) -> None:
    folder = tmp_path / "t"
    first = ExamplesKey.of(folder, 0)
    assert ExamplesKey.of(folder, 0) == ExamplesKey.of(folder, 1) == first
    recorded(folder, NAMED)
    assert read_trace(folder).manifest.examples_key == first.digest
    key_path(folder).unlink()
    with pytest.raises(UsageError, match="put it back"):
        recorded(folder, NAMED)


def test_a_run_does_not_begin_to_store_data_when_it_is_gone_on_with(tmp_path) -> None:
    recorded(tmp_path / "t", NAMED)
    with pytest.raises(UsageError, match="examples_key"):
        recorded(tmp_path / "t", replace(NAMED, store_data=True))


def test_a_run_goes_on_to_store_data(tmp_path) -> None:
    recorded(tmp_path / "t", replace(NAMED, store_data=True))
    with pytest.raises(UsageError, match=r"continue with store_data=True"):
        recorded(tmp_path / "t", NAMED)


def test_names_are_left_out_of_redacted_traces(tmp_path) -> None:
    recorded(tmp_path / "t", NAMED)
    redact(tmp_path / "t", tmp_path / "public")
    trace = read_trace(tmp_path / "public")
    assert trace.manifest.examples_key is None
    assert not any(batch.name for step in trace.steps() for batch in step.batches)
    assert not key_path(tmp_path / "public").exists()


def test_steps_that_do_not_say_which_examples_they_had(tmp_path) -> None:
    """A loop that only makes a recorder."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path / "t", model, optimizer, every=1) as recorder:
        recorder.wrap_loss(torch.nn.CrossEntropyLoss())(
            model(torch.ones(4, 3)), torch.ones(4).long()
        )
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    gap = recorded_of(read_trace(tmp_path / "t"), Network().graph()).gap
    assert "recorder.batch(index=…)" in gap
