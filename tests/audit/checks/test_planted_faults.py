"""One fault at a time, planted into a recorded run: the right check finds it, and only that."""

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
        "epsilon",
    }
    assert found.not_done == ()


def test_a_right_run_with_micro_batches_passes(tmp_path: Path) -> None:
    assert bad(audited(tmp_path / "t", micro=3)) == set()


def stretched(network: Network, step: int) -> None:
    if step == 3:
        with torch.no_grad():
            network.first.weight.mul_(1.25)


def centred(network: Network) -> None:
    """What the last layer reads is centred over the batch, in training and not in the graph."""
    network.last.register_forward_pre_hook(lambda _, h: h[0] - h[0].mean(dim=0, keepdim=True))


def twice(random: np.random.Generator, step: int) -> np.ndarray:
    index = np.flatnonzero(random.random(EXAMPLES) < BATCH / EXAMPLES)
    return np.append(index, index[:1]) if step == 2 else index


def fixed_size(random: np.random.Generator, _: int) -> np.ndarray:
    return random.choice(EXAMPLES, BATCH, replace=False)


def shuffled(_: np.random.Generator, step: int) -> np.ndarray:
    order = np.random.default_rng(0).permutation(EXAMPLES)
    sizes = np.array([25, 22, 26, 23, 27, 24, 21, 26, 28, 25, 24, 29])
    end = np.cumsum(sizes)[step]
    return order[end - sizes[step] : end]


SCHEDULE, NOISE, AGREEMENT = ("LC311", "schedule"), ("LC314", "noise"), ("LC312", "agreement")
FAULTS: dict[str, tuple[dict[str, object], set[tuple[str, str]], str, float | None]] = {
    "noise missing on one tensor": (
        {"noise_of": lambda name, step, z, _: z * (name != "last.weight" or step != 8)},
        {NOISE}, "step 8, last.weight", 0.0,
    ),
    "half of the noise": ({"noise_of": lambda _n, _s, z, _std: 0.5 * z}, {NOISE}, "", 0.5),
    "twice the noise": ({"noise_of": lambda _n, _s, z, _std: 2.0 * z}, {NOISE}, "", 2.0),
    "noise with a mean": (
        {"noise_of": lambda _n, _s, z, std: z + 0.8 * std}, {NOISE}, "mean", None,
    ),
    "less noise than accounted for": ({"std_factor": 0.7}, {SCHEDULE}, "", 0.7 * SIGMA),
    "a reused seed": (
        {"seed": lambda step: 3 if step in {4, 8} else 1000 + step},
        {("LC315", "seed-reuse")}, "step 8.*step 4", 1.0,
    ),
    "a weight outside its constraint at one step": (
        {"after_projection": stretched},
        {("LC310", "weight-constraint")}, "step 4: first.weight", 1.25,
    ),
    "divided by the size of the batch": (
        {"divisor": float, "stated_divisor": float}, {SCHEDULE}, "LC401", None,
    ),
    "another divisor than recorded": (
        {"divisor": lambda _: 0.8 * BATCH}, {AGREEMENT}, "1.25 times", None,
    ),
    "a sum for a mean": (
        {"divisor": lambda _: 1.0, "stated_divisor": lambda _: 1.0},
        {("LC312", "contribution"), ("LC323", "epsilon"), SCHEDULE}, "", None,
    ),
    "a sum that is said to be a mean": (
        {"divisor": lambda _: 1.0}, {AGREEMENT}, f"{BATCH} times", None,
    ),
    "batches of a fixed size": ({"draw": fixed_size}, {SCHEDULE}, "of one size", None),
    "a shuffled data set": (
        {"draw": shuffled}, {SCHEDULE}, "which has at most the probability", None,
    ),
    "another sampler": ({"sampler": "shuffle"}, {SCHEDULE}, "", None),
    "an example twice in a batch": ({"draw": twice}, {SCHEDULE}, "step 2", None),
    "a layer that mixes the batch": (
        {"changed": centred}, {("LC317", "agreement")}, "", None,
    ),
    "more steps than accounted for": ({"steps": 13}, {SCHEDULE}, "", 13.0),
}  # fmt: skip
"""changes of a run; what finds it; what that says, and measures"""
FOLLOW = {
    "a reused seed": ("LC314", "noise"),
    "noise with a mean": ("LC315", "seed-reuse"),
    "a weight outside its constraint at one step": ("LC312", "contribution"),
    "divided by the size of the batch": AGREEMENT,
}
"""what may find it, too"""


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check_and_by_no_other(name: str, tmp_path: Path) -> None:
    changes, codes, says, measured = FAULTS[name]
    found = audited(tmp_path / "t", **changes)
    follow = {FOLLOW[name]} if name in FOLLOW else set()
    assert codes <= bad(found) <= codes | follow
    own = [report for report in found.reports if (report.code, report.name) in codes]
    failed = [report for report in own if report.verdict is not Verdict.PASS]
    wanted = Verdict.INCONCLUSIVE if name == "twice the noise" else Verdict.VIOLATION
    assert wanted in {report.verdict for report in failed}
    assert any(re.search(says, f"{report.where} {report.message}") for report in failed)
    if measured is not None:
        near = pytest.approx(measured, rel=0.4, abs=1e-9)
        assert any(report.measured == near for report in failed)


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
