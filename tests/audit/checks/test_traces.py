"""What a trace itself shows: damage, an end that nobody wrote, statistics that move."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lipcert.audit.checks import check_recorded_run
from lipcert.audit.checks.schedule import left_out
from lipcert.audit.records import Verdict
from lipcert.audit.trace.blobs import Blob, stored
from lipcert.audit.trace.reading import Trace, read_trace
from lipcert.audit.trace.records import Batch, Gradients, Manifest, Noise, Step
from lipcert.audit.trace.writing import TraceWriter
from lipcert.privacy.plan import Sampling
from tests.audit.checks.runs import (
    Network,
    Plan,
    array_of,
    audited,
    bad,
    claims_for,
)
from tests.audit.loop_faults import shifted_signs

pytestmark = pytest.mark.filterwarnings("ignore::lipcert.audit.trace.writing.PrivateDataWarning")

UNSHOWN = {("LC314", "noise"), ("LC314", "release")}
"""what rests on gradients, of which these traces have none"""


def written(folder: Path, network: Network, means: list[float], *, closed: bool = True) -> Trace:
    """Steps at one set of weights, with a statistic that takes these values."""
    weights = {name: array_of(p).astype(np.float32) for name, p in network.named_parameters()}
    shapes = {name: item.shape for name, item in weights.items()}
    manifest = Manifest({}, 1, shapes, {"bn.running_mean": (1,)} if means else {})
    writer = TraceWriter(folder, manifest)
    for number, mean in enumerate(means or [0.0, 0.0]):
        statistic = {"bn.running_mean": np.array([mean], np.float32)} if means else {}
        named = {name: stored(item) for name, item in {**weights, **statistic}.items()}
        writer.append(Step(0, number, 1.0, weights_before=writer.store(named)))
    if closed:
        writer.close()
    return read_trace(folder)


def test_an_intact_trace_passes(tmp_path: Path) -> None:
    network = Network()
    found = check_recorded_run(claims_for(network), written(tmp_path / "t", network, []))
    assert bad(found) == UNSHOWN
    names = {report.name for report in found.reports if report.verdict is Verdict.PASS}
    assert names == {"trace-integrity", "schedule", "weight-constraint"}
    assert any("contribution" in text for text in found.not_done)
    assert any("sampling" in text for text in found.not_done)


@pytest.mark.parametrize("what", ["steps-0.jsonl", "blob"])
def test_a_damaged_trace_is_no_verdict_with_its_place(tmp_path: Path, what: str) -> None:
    network = Network()
    trace = written(tmp_path / "t", network, [])
    path = next((tmp_path / "t/blobs").iterdir()) if what == "blob" else tmp_path / "t" / what
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    found = check_recorded_run(claims_for(network), trace)
    assert {report.verdict for report in found.reports} == {Verdict.MISMATCH}
    assert {report.code for report in found.reports} == {"LC320"}
    assert "steps-0.jsonl:" in found.reports[0].where


def test_an_open_end_is_said(tmp_path: Path) -> None:
    network = Network()
    trace = written(tmp_path / "t", network, [], closed=False)
    found = check_recorded_run(claims_for(network), trace)
    assert bad(found) == UNSHOWN
    assert any("does not state that it ended" in text for text in found.not_done)


def test_statistics_that_move_are_not_those_of_the_file(tmp_path: Path) -> None:
    network = Network()
    trace = written(tmp_path / "t", network, [0.0, 0.0, 0.5])
    found = check_recorded_run(claims_for(network), trace)
    assert ("LC319", "weight-constraint") in bad(found)


def missed(**change) -> list[str]:
    """What is inconclusive for a second step with this change."""
    blob = Blob("0" * 64, Path())
    step = Step(0, 0, 0.0, (BATCH,), noise=Noise({}, "1"), gradients=Gradients(blob, None, blob))
    run = SimpleNamespace(trace=SimpleNamespace(ranks=(0,)), name=lambda step: step.number)
    run.steps = step, replace(step, number=1, **change)
    return [str(item.message) for item in left_out(run) if item.verdict is Verdict.INCONCLUSIVE]


BATCH = Batch(2, np.arange(2), sampler=Sampling.POISSON, rate=0.1, divisor=2.0)


def test_what_one_step_leaves_out_is_missed() -> None:
    """A step without any detail, and an empty batch, leave nothing out."""
    assert missed(gradients=Gradients()) == missed(batches=(Batch(0),)) == []
    for name in ("index", "sampler", "rate", "divisor"):
        assert len(missed(batches=(BATCH, replace(BATCH, **{name: None})))) == 1
    assert "its batch" in missed(batches=())[0]
    assert "the generator" in missed(noise=Noise({}))[0]
    assert "applied" in missed(gradients=Gradients(Blob("0" * 64, Path())))[0]


def centred(network: Network) -> None:
    """What the last layer reads is centred over the batch, in training and not in the graph."""
    network.last.register_forward_pre_hook(lambda _, h: h[0] - h[0].mean(dim=0, keepdim=True))


def test_a_layer_that_mixes_the_batch_is_found_by_its_check_alone(tmp_path: Path) -> None:
    assert bad(audited(tmp_path / "t", changed=centred)) == {("LC317", "agreement")}


def test_nothing_recorded_of_the_noise_is_no_pass(tmp_path: Path) -> None:
    found = audited(Path(tmp_path / "t"), Plan(state_noise=False))
    assert bad(found) == {("LC314", "noise")}
    assert not any(report.verdict is Verdict.VIOLATION for report in found.reports)
    assert any(text.startswith("schedule:") for text in found.not_done)


def test_a_deviation_that_is_no_number_counts_as_not_stated(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", stated_factor=float("nan"))
    noises = [report for report in found.reports if report.name == "noise"]
    assert noises
    assert all("is not stated" in report.message for report in noises)


def seeded_each(_name: str, step: int, drawn: torch.Tensor, std: float) -> torch.Tensor:
    """From one seed for every tensor of a step."""
    random = np.random.default_rng(step)
    return std * torch.from_numpy(random.standard_normal(drawn.shape)).to(drawn.dtype)


def test_noise_of_one_step_is_compared_with_itself(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", noise_of=seeded_each, detail=100, state_noise=False)
    assert ("LC315", "seed-reuse") in bad(found)


def test_noise_of_a_weak_generator_is_seen_in_a_run(tmp_path) -> None:
    found = audited(tmp_path / "t", noise_of=lambda _name, _step, z, _std: shifted_signs(z))
    assert bad(found) == {("LC315", "seed-reuse")}
