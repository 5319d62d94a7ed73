"""One fault at a time, planted into a recorded run: the right check finds it, and only that."""

from __future__ import annotations

import re
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
    BATCH,
    EXAMPLES,
    SIGMA,
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


def test_a_right_run_passes_everything(tmp_path: Path) -> None:
    found = audited(tmp_path / "t")
    assert bad(found) == set()
    names = {report.name for report in found.reports}
    assert names == {
        "trace-integrity",
        "schedule",
        "noise",
        "release",
        "seed-reuse",
        "weight-constraint",
        "contribution",
        "agreement",
        "chain",
    }
    assert found.not_done == ()


def test_a_right_run_with_micro_batches_passes(tmp_path: Path) -> None:
    assert bad(audited(tmp_path / "t", micro=3)) == set()


def test_noise_missing_on_one_tensor(tmp_path: Path) -> None:
    found = audited(
        tmp_path / "t",
        noise_of=lambda name, step, drawn, _: drawn * (name != "last.weight" or step != 8),
    )
    assert bad(found) == {("LC314", "noise")}
    report = next(r for r in found.reports if r.where == "step 8, last.weight")
    assert report.verdict is Verdict.VIOLATION
    assert report.measured == 0.0


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "violation"), (2.0, "inconclusive")])
def test_noise_of_another_size_than_stated(tmp_path: Path, factor: float, verdict: str) -> None:
    found = audited(tmp_path / "t", noise_of=lambda _n, _s, drawn, _std: factor * drawn)
    assert bad(found) == {("LC314", "noise")}
    reports = [r for r in found.reports if r.name == "noise"]
    assert {r.verdict.value for r in reports} == {verdict}
    assert all(r.measured == pytest.approx(factor, rel=0.4) for r in reports)


def test_noise_with_a_mean(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", noise_of=lambda _n, _s, drawn, std: drawn + 0.8 * std)
    assert ("LC314", "noise") in bad(found)
    assert any("mean" in r.message and r.verdict is Verdict.VIOLATION for r in found.reports)


def test_less_noise_than_accounted_for_is_stated(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", std_factor=0.7)
    assert bad(found) == {("LC311", "schedule")}
    report = only(found, "schedule")
    assert report.measured == pytest.approx(0.7 * SIGMA, rel=1e-6)
    assert report.expected == SIGMA


def test_a_reused_seed(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", seed=lambda step: 3 if step in {4, 8} else None)
    assert bad(found) == {("LC315", "seed-reuse")}
    states, noises = [r for r in found.reports if r.name == "seed-reuse"]
    assert "step 8" in states.where
    assert "step 4" in states.message
    assert noises.measured == pytest.approx(1.0, abs=1e-4)


def test_a_weight_outside_its_constraint_at_one_step(tmp_path: Path) -> None:
    def stretch(network: Network, step: int) -> None:
        if step == 3:
            with torch.no_grad():
                network.first.weight.mul_(1.25)

    found = audited(tmp_path / "t", after_projection=stretch)
    report = only(found, "weight-constraint")
    assert report.code == "LC310"
    assert report.verdict is Verdict.VIOLATION
    assert report.where == "step 4: first.weight"
    assert report.expected == 1.0
    assert 1.0 < (report.measured or 0.0) <= 1.25 * (1 + 1e-6)
    assert bad(found) <= {("LC310", "weight-constraint"), ("LC312", "contribution")}


def test_an_input_outside_the_ball_where_nothing_is_replayed(tmp_path: Path) -> None:
    claims = claims_for(Network())
    with TraceWriter(tmp_path / "t", Manifest({}, 1, {"first.weight": (12, 8)})) as writer:
        x = np.full((4, 8), 0.1)
        x[3] = 0.5
        batch = Batch(examples=4, tensors=writer.store({"input": stored(x)}))
        writer.append(Step(0, 0, 1.0, (batch,)))
    found = check_recorded_run(claims, read_trace(tmp_path / "t"))
    assert bad(found) == {("LC304", "admissibility")}
    assert "example 3" in only(found, "admissibility").message


def test_a_divisor_that_is_the_size_of_the_batch(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", divisor=float, stated_divisor=float)
    assert ("LC311", "schedule") in bad(found)
    assert "LC401" in only(found, "schedule").message


def test_a_divisor_that_is_not_the_recorded_one(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", divisor=lambda count: 0.8 * BATCH)
    reports = [r for r in found.reports if r.name == "agreement"]
    assert {(r.code, r.verdict) for r in reports} == {("LC312", Verdict.VIOLATION)}
    assert all("1.25 times" in r.message for r in reports)


def test_a_sum_for_a_mean(tmp_path: Path) -> None:
    """Recorded as a sum, and claimed as a mean: every example counts BATCH times."""
    found = audited(tmp_path / "t", divisor=lambda _: 1.0, stated_divisor=lambda _: 1.0)
    assert {("LC312", "contribution"), ("LC311", "schedule")} <= bad(found)
    noise = next(r for r in found.reports if r.name == "contribution")
    assert noise.verdict is Verdict.VIOLATION


def test_a_sum_that_is_said_to_be_a_mean(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", divisor=lambda _: 1.0)
    assert bad(found) == {("LC312", "agreement")}
    assert all(f"{BATCH} times" in r.message for r in found.reports if r.name == "agreement")


def test_batches_of_a_fixed_size_said_to_be_poisson(tmp_path: Path) -> None:
    found = audited(
        tmp_path / "t",
        draw=lambda _, random: random.choice(EXAMPLES, BATCH, replace=False),
        steps=12,
    )
    assert bad(found) == {("LC311", "schedule")}
    assert "fixed size" in only(found, "schedule").message


def test_a_shuffled_data_set_said_to_be_poisson(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(EXAMPLES)
    sizes = np.array([25, 22, 26, 23, 27, 24, 21, 26, 28, 25, 24, 29])
    ends = np.cumsum(sizes)
    found = audited(
        tmp_path / "t", draw=lambda step, _: order[ends[step] - sizes[step] : ends[step]]
    )
    assert bad(found) == {("LC311", "schedule")}
    assert "are not drawn with equal probability" in only(found, "schedule").message


def test_another_sampler_than_accounted_for(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", sampler="shuffle")
    assert bad(found) == {("LC311", "schedule")}


def test_an_example_twice_in_a_batch(tmp_path: Path) -> None:
    def twice(step: int, random: np.random.Generator) -> np.ndarray:
        index = np.flatnonzero(random.random(EXAMPLES) < BATCH / EXAMPLES)
        return np.append(index, index[:1]) if step == 2 else index

    found = audited(tmp_path / "t", draw=twice)
    assert bad(found) == {("LC311", "schedule")}
    assert only(found, "schedule").where == "step 2"


def test_a_layer_that_mixes_the_batch(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", mix=lambda h: h - h.mean(dim=0, keepdim=True))
    assert bad(found) == {("LC317", "agreement")}


def test_more_steps_than_accounted_for(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", steps=13)
    assert bad(found) == {("LC311", "schedule")}
    assert only(found, "schedule").measured == 13.0


def test_nothing_recorded_of_the_noise_is_said(tmp_path: Path) -> None:
    found = audited(Path(tmp_path / "t"), Plan(state_noise=False))
    assert bad(found) == set()
    assert any(text.startswith("noise:") for text in found.not_done)
    assert any(text.startswith("schedule:") for text in found.not_done)


def test_a_deviation_that_is_no_number_counts_as_not_stated(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", stated_factor=float("nan"))
    assert any("is not stated" in text for text in found.not_done)
    assert not [r for r in found.reports if r.name == "noise"]


def seeded_each(_name: str, step: int, drawn: torch.Tensor, std: float) -> torch.Tensor:
    """From one seed for every tensor of a step."""
    random = np.random.default_rng(step)
    return std * torch.from_numpy(random.standard_normal(drawn.shape)).to(drawn.dtype)


def repeated(name: str, _step: int, drawn: torch.Tensor, _std: float) -> torch.Tensor:
    """One row for all of a tensor's, but for a scale."""
    rows = torch.linspace(0.5, 1.3, len(drawn))[:, None]
    return rows * drawn[:1] if name == "first.weight" else drawn


def rolled(name: str, step: int, drawn: torch.Tensor, std: float) -> torch.Tensor:
    """That of the step before, further on by three entries and negated."""
    once = torch.randn(drawn.shape, generator=torch.Generator().manual_seed(len(name)))
    return (-1) ** step * std * torch.roll(once.flatten(), 3 * step).reshape(drawn.shape)


@pytest.mark.parametrize(
    ("noise_of", "says"),
    [
        (seeded_each, r"that on 'last.weight' at step"),
        (repeated, r"'first.weight' (at step \d+ )?and \w+,? \d+ entries further on"),
        (rolled, r"shifted by -?\d+ entries"),
    ],
)
def test_noise_that_is_used_twice(tmp_path: Path, noise_of: object, says: str) -> None:
    found = audited(tmp_path / "t", noise_of=noise_of, detail=2)
    reports = [report for report in found.reports if report.code == "LC315"]
    assert {report.verdict for report in reports} == {Verdict.VIOLATION}
    assert any(re.search(says, report.message) for report in reports), reports


def test_noise_of_one_step_is_compared_with_itself(tmp_path: Path) -> None:
    found = audited(tmp_path / "t", noise_of=seeded_each, detail=100, state_noise=False)
    assert ("LC315", "seed-reuse") in bad(found)
