"""Recorded runs of every mechanism: right ones pass, and planted faults are found."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from lipcert.audit.records import AuditReport, CheckReport, Verdict
from tests.audit.mechanism_runs import HELD, SIGMA, Fault, Network, Way, audited, codes, settings

FEW = 5
"""steps under weight clipping, where every one is bounded anew"""
SOME = (0, 2, 4)
CLIPPED = settings(mechanism="weight-clipping", steps=FEW, **HELD)
CLIPLESS = settings(mechanism="clipless", **HELD)
BACKPROP = settings(mechanism="backprop-clipping", input_clip=0.8, cotangent_clip=0.3)
LAYERS = settings(
    mechanism="backprop-clipping",
    input_clips={"last": 0.5},
    cotangent_clips={"first": 0.1, "last": 0.4},
)
FLAT = settings(mechanism="gradient-clipping", clip_norm=0.5)
GROUPED = settings(mechanism="gradient-clipping", clip_norm=0.5, clip_scope="group")
INSIDE = settings(mechanism="gradient-clipping", clip_norm=0.5, decay="inside")
INSIDE_GROUPED = settings(
    mechanism="gradient-clipping", clip_norm=0.5, decay="inside", clip_scope="group"
)
OWN = (("first", 2.0), ("last", 3.0))

RIGHT_WAYS = {
    "weight clipping": Way(CLIPPED, detail=SOME),
    "weight clipping, optimal noise": Way(
        settings(mechanism="weight-clipping", allocation="optimal", steps=FEW, **HELD),
        micro=2,
        detail=SOME,
    ),
    "clipless, loss clip": Way(settings(mechanism="clipless", loss_clip=0.3, **HELD)),
    "clipless, global": Way(settings(mechanism="clipless", allocation="global", **HELD)),
    "clipless, custom": Way(
        settings(mechanism="clipless", allocation="custom", noise_multipliers=OWN, **HELD)
    ),
    "fixed norms": Way(settings(mechanism="fixed-weight-norm", **HELD)),
    "backprop": Way(BACKPROP, micro=2),
    "backprop, radii of layers": Way(LAYERS),
    "flat clip": Way(FLAT),
    "clip of groups": Way(GROUPED, empty_pass=True),
    "decay inside": Way(INSIDE, weight_decay=0.4),
    "decay inside, groups": Way(INSIDE_GROUPED, weight_decay=0.4),
    "two ranks": Way(CLIPLESS, ranks=2),
}
ALL = {
    "trace-integrity",
    "schedule",
    "noise",
    "release",
    "seed-reuse",
    "contribution",
    "agreement",
    "chain",
    "epsilon",
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", RIGHT_WAYS)
def test_a_right_run_passes(name: str, tmp_path: Path) -> None:
    way = RIGHT_WAYS[name]
    report = audited(tmp_path / "t", way)
    assert (report.verdict, report.reasons, report.notes) == (Verdict.PASS, (), ())
    held = {"weight-constraint"} if way.settings.constraint is not None else set()
    assert {check.name for check in report.checks} == ALL | held
    assert report.examples > 0
    assert all(0.0 < (group.tightness or 0.0) <= 1.0 for group in report.groups)
    whole = report.gradient
    assert whole.examples == report.examples
    assert whole.slack is not None
    assert whole.slack >= 1.0 - 1e-12
    best = min(group.detectable_error_factor or math.inf for group in report.groups)
    assert whole.slack >= best * (1.0 - 1e-12), "no nearer to its bound than the nearest group"


def failing(report: AuditReport, code: str) -> CheckReport:
    """The first report of this code that is a violation."""
    return next(c for c in report.checks if (c.code, c.verdict) == (code, Verdict.VIOLATION))


def test_more_noise_than_a_step_needs_is_right_under_weight_clipping(tmp_path: Path) -> None:
    report = audited(tmp_path / "t", Way(CLIPPED), Fault(std=lambda step, _: 1.0 + step / 25.0))
    assert report.verdict is Verdict.PASS
    assert any("1.5 to 1.74, where 1.5 suffices" in check.message for check in report.checks)


def test_noise_too_small_at_one_step_without_detail(tmp_path: Path) -> None:
    report = audited(
        tmp_path / "t", Way(CLIPPED), Fault(std=lambda step, _: 0.9 if step == 3 else 1.0)
    )
    assert codes(report) == {"LC311"}
    found = failing(report, "LC311")
    assert found.where == "step 3"
    assert found.measured is not None
    assert 0.9 * (1 - 1e-6) * SIGMA <= found.measured < SIGMA, (
        "bounds may be below those of the run"
    )


def test_noise_too_small_on_one_group(tmp_path: Path) -> None:
    """Twice as much on the other group does not make up for it."""
    factors = {"first": 0.7, "last": 2.0}
    report = audited(tmp_path / "t", Way(CLIPPED), Fault(std=lambda _, group: factors[group]))
    found = failing(report, "LC311")
    expected = SIGMA * (0.5 / 0.7**2 + 0.5 / 2.0**2) ** -0.5
    assert found.measured is not None
    assert expected * (1 - 1e-6) <= found.measured < SIGMA


def test_bounds_of_the_first_step_after_weights_grew(tmp_path: Path) -> None:
    way = Way(CLIPPED, start=0.2, learning_rate=1.0)
    report = audited(tmp_path / "t", way, Fault(bounds_of=lambda _: 0))
    assert "LC311" in codes(report)
    found = failing(report, "LC311")
    assert found.where == "step 1"
    assert (found.measured or 0.0) < 0.9 * SIGMA


def test_weights_that_are_recorded_rarely_are_counted(tmp_path: Path) -> None:
    report = audited(tmp_path / "t", Way(CLIPPED, every=3, detail=3))
    assert report.verdict is Verdict.PASS
    (note,) = report.notes
    assert f"of {FEW - 2} of {FEW} steps is not compared with any sensitivity" in note


@torch.no_grad()
def stretched(network: Network, step: int) -> None:
    if step == 2:
        network.first.weight.mul_(1.25 / torch.linalg.matrix_norm(network.first.weight, 2))


def test_a_weight_outside_its_radius(tmp_path: Path) -> None:
    report = audited(tmp_path / "t", Way(CLIPPED, detail=3), Fault(after=stretched))
    assert "LC310" in codes(report)
    found = failing(report, "LC310")
    assert found.where == "step 3: first.weight"
    assert found.measured == pytest.approx(1.25, rel=1e-3)
    assert any(f"of 1 of {FEW} steps is not compared with" in note for note in report.notes)
    assert any("not compared with any bound" in reason for reason in report.reasons)


@pytest.mark.parametrize("wanted", [INSIDE, INSIDE_GROUPED], ids=["flat", "groups"])
def test_a_decay_that_is_left_out_of_the_clip(wanted: object, tmp_path: Path) -> None:
    report = audited(tmp_path / "t", Way(wanted, weight_decay=0.4), Fault(decay=0.0))
    assert codes(report) == {"LC317"}


def test_a_decay_that_the_claims_do_not_know(tmp_path: Path) -> None:
    report = audited(tmp_path / "t", Way(FLAT, weight_decay=0.4))
    assert "LC311" in codes(report)
    assert "together with the decay" in failing(report, "LC311").message


def test_a_decay_that_is_not_declared_leaves_sums_unchecked(tmp_path: Path) -> None:
    report = audited(tmp_path / "t", Way(INSIDE), Fault(decay=0.4))
    assert report.verdict is Verdict.PASS
    assert sum("declare(weight_decay=…)" in note for note in report.notes) == 3


WRONG = {
    "one radius for all": {"cotangent_clip": 0.4, "cotangent_clips": ()},
    "exchanged": {"cotangent_clips": (("first", 0.4), ("last", 0.1))},
    "no input clip": {"input_clips": ()},
    "an input clip more": {"input_clip": 0.3},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_layer_that_clips_otherwise_than_claimed(name: str, tmp_path: Path) -> None:
    """Sums of gradients are not those of the claimed clips: a violation, or where they are shorter
    than these by a factor, inconclusive."""
    trained = replace(LAYERS, **WRONG[name])  # type: ignore[arg-type]
    report = audited(tmp_path / "t", Way(LAYERS, start=3.0), Fault(clips=trained))
    is_shorter = name == "exchanged"
    expected = Verdict.INCONCLUSIVE if is_shorter else Verdict.VIOLATION
    assert report.verdict is expected
    assert codes(report, expected) == {"LC317"}


def test_noise_added_by_both_ranks(tmp_path: Path) -> None:
    report = audited(tmp_path / "t", Way(CLIPLESS, ranks=2), Fault(own_noise=True))
    assert codes(report) == {"LC314"}
    assert "a release of its own" in failing(report, "LC314").message
    assert "LC317" in codes(report, Verdict.INCONCLUSIVE)


def test_a_divisor_of_two_ranks(tmp_path: Path) -> None:
    """An average over ranks in place of their sum."""
    report = audited(tmp_path / "t", Way(CLIPLESS, ranks=2), Fault(divisor=2.0))
    inconclusive = codes(report, Verdict.INCONCLUSIVE)
    assert (codes(report), inconclusive) == (set(), {"LC317"})
    assert any("0.5 times" in check.message for check in report.checks)


SEEDS = 25
OPTIMIZERS = (
    torch.optim.SGD,
    partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01),
    torch.optim.Adam,
    torch.optim.RMSprop,
    partial(torch.optim.SGD, momentum=0.5, nesterov=True),
)


def run(folder: Path, name: str, seed: int) -> AuditReport:
    """Of a seed, with an optimizer that follows from it, recorded in full.

    Ranks take turns in one process, so that the first one has to begin also without an example.
    """
    optimizer = OPTIMIZERS[seed % len(OPTIMIZERS)]
    rate = 0.03 if optimizer in {torch.optim.Adam, torch.optim.RMSprop} else 0.2
    way = RIGHT_WAYS[name]
    changes = {"empty_pass": True} if way.ranks > 1 else {}
    way = replace(way, seed=seed, detail=1, optimizer=optimizer, learning_rate=rate, **changes)
    return audited(folder, way)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", RIGHT_WAYS)
def test_no_right_run_is_blamed(name: str, seed: int, tmp_path: Path) -> None:
    """25 of each of 13 ways, all tests by chance of which may blame one in a million; what is no
    matter of chance never may."""
    report = run(tmp_path / "t", name, seed)
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())
