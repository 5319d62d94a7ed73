"""One fault at a time, planted into a recorded run: the right check finds it, and only that."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lipcert.audit.checks import check_recorded_run
from lipcert.audit.records import Verdict
from lipcert.audit.trace.blobs import stored
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.records import Batch, Manifest, Step
from lipcert.audit.trace.writing import PrivateDataWarning, TraceWriter
from tests.audit.checks.runs import (
    Network,
    Plan,
    audited,
    bad,
    claims_for,
    only,
)

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{PrivateDataWarning.__module__}.PrivateDataWarning"
)


def centred(network: Network) -> None:
    """What the last layer reads is centred over the batch, in training and not in the graph."""
    network.last.register_forward_pre_hook(lambda _, h: h[0] - h[0].mean(dim=0, keepdim=True))


def test_a_layer_that_mixes_the_batch_is_found_by_its_check_alone(tmp_path: Path) -> None:
    assert bad(audited(tmp_path / "t", changed=centred)) == {("LC317", "agreement")}


def test_an_input_outside_the_ball_where_nothing_is_replayed(tmp_path: Path) -> None:
    claims = claims_for(Network())
    with TraceWriter(tmp_path / "t", Manifest({}, 1, {"first.weight": (12, 8)})) as writer:
        x = np.full((4, 8), 0.1)
        x[3] = 0.5
        batch = Batch(examples=4, tensors=writer.store({"input": stored(x)}))
        writer.append(Step(0, 0, 1.0, (batch,)))
    found = check_recorded_run(claims, read_trace(tmp_path / "t"))
    assert ("LC304", "admissibility") in bad(found)
    assert "example 3" in only(found, "admissibility").message


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
