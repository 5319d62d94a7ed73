"""Recorded runs of every mechanism: right ones pass, and planted faults are found."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from lipcert.audit.records import AuditReport, Verdict
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
def test_a_right_run_passes(name: str, tmp_path) -> None:
    way = RIGHT_WAYS[name]
    report = audited(tmp_path / "t", way)
    assert (report.verdict, report.reasons, report.notes) == (Verdict.PASS, (), ())
    held = {"weight-constraint"} if way.settings.constraint is not None else set()
    assert {check.name for check in report.checks} == ALL | held
    assert report.examples > 0
    assert all(0.0 < (group.tightness or 0.0) <= 1.0 for group in report.groups)
    whole = report.gradient
    assert whole.examples == report.examples
    assert whole.slack >= 1.0 - 1e-12
    best = min(group.detectable_error_factor or math.inf for group in report.groups)
    assert whole.slack >= best * (1.0 - 1e-12), "no nearer to its bound than the nearest group"


@torch.no_grad()
def stretched(network: Network, step: int) -> None:
    if step == 2:
        network.first.weight.mul_(1.25 / torch.linalg.matrix_norm(network.first.weight, 2))


def fell(factors: dict[str, float]) -> float:
    """σ of a step whose two groups have these shares of the noise that is required."""
    return SIGMA * (0.5 / factors["first"] ** 2 + 0.5 / factors["last"] ** 2) ** -0.5


ONE_TOO_SMALL = {"first": 0.7, "last": 2.0}
TWO = Way(CLIPLESS, ranks=2)
ANY, NOT_ALL = (0.0, math.inf), "of 1 of 5 steps is not compared|with any bound"
JUDGED: dict[str, tuple[Way, Fault, str, str, tuple[float, float]]] = {
    "more noise than a step needs": (
        *(Way(CLIPPED), Fault(std=lambda step, _: 1.0 + step / 25.0)),
        *("", "1.5 to 1.74, where 1.5 suffices", ANY),
    ),
    "noise too small at one step without detail": (
        *(Way(CLIPPED), Fault(std=lambda step, _: 0.9 if step == 3 else 1.0)),
        *("LC311", "step 3", (0.9 * SIGMA, SIGMA)),
    ),
    "noise too small on one group, for which the other does not make up": (
        *(Way(CLIPPED), Fault(std=lambda _, group: ONE_TOO_SMALL[group])),
        *("LC311", "", (fell(ONE_TOO_SMALL), SIGMA)),
    ),
    "bounds of the first step after weights grew": (
        *(Way(CLIPPED, start=0.2, learning_rate=1.0), Fault(bounds_of=lambda _: 0)),
        *("LC311", "step 1", (0.0, 0.9 * SIGMA)),
    ),
    "weights that are recorded rarely": (
        *(Way(CLIPPED, every=3, detail=3), Fault()),
        *("", f"of {FEW - 2} of {FEW} steps is not compared with any sensitivity", ANY),
    ),
    "a weight outside its radius": (
        *(Way(CLIPPED, detail=3), Fault(after=stretched)),
        *("LC310 (LC319)", f"step 3: first.weight|{NOT_ALL}", (1.249, 1.251)),
    ),
    "a decay that is left out of the clip": (
        *(Way(INSIDE, weight_decay=0.4), Fault(decay=0.0)),
        *("LC317", "", ANY),
    ),
    "a decay that is left out of the clips of groups": (
        *(Way(INSIDE_GROUPED, weight_decay=0.4), Fault(decay=0.0)),
        *("LC317", "", ANY),
    ),
    "a decay that the claims do not know": (
        *(Way(FLAT, weight_decay=0.4), Fault()),
        *("LC311 LC317", "together with the decay", ANY),
    ),
    "a decay that is not declared": (
        *(Way(INSIDE), Fault(decay=0.4)),
        *("", "declare(weight_decay=…)", ANY),
    ),
    "noise added by both ranks": (
        *(TWO, Fault(own_noise=True)),
        *("LC314 (LC317)", "a release of its own", ANY),
    ),
    "an average over ranks in place of their sum": (
        *(TWO, Fault(divisor=2.0)),
        *("(LC317)", "0.5 times", ANY),
    ),
}
"""way, fault; codes of violations, in brackets those in doubt; where, or what is said; the ends
between which the first one measures"""


@pytest.mark.parametrize("name", JUDGED)
def test_a_run_is_judged_so(name: str, tmp_path) -> None:
    way, fault, found, says, span = JUDGED[name]
    report = audited(tmp_path / "t", way, fault)
    doubtful = {f"({code})" for code in codes(report, Verdict.INCONCLUSIVE)}
    assert codes(report) | doubtful == set(found.split()), report.reasons
    assert (report.verdict is Verdict.PASS) == (not found)
    told = [f"{check.code} {check.where} {check.message}" for check in report.checks]
    text = " ".join((*told, *report.notes, *report.reasons))
    assert [part for part in says.split("|") if part not in text] == []
    first = next((check for check in report.checks if check.code == found[:5]), None)
    if span is not ANY:  # bounds may be below those of the run
        assert span[0] * (1 - 1e-6) <= (first.measured or 0.0) < span[1]
    assert not says.startswith("step") or first.where == says.partition("|")[0]
    assert "declare" not in says or sum(says in note for note in report.notes) == 3  # of sums


WRONG = {
    "one radius for all": {"cotangent_clip": 0.4, "cotangent_clips": ()},
    "exchanged": {"cotangent_clips": (("first", 0.4), ("last", 0.1))},
    "no input clip": {"input_clips": ()},
    "an input clip more": {"input_clip": 0.3},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_layer_that_clips_otherwise_than_claimed(name: str, tmp_path) -> None:
    """Sums of gradients are not those of the claimed clips: a violation, or where they are shorter
    than these by a factor, inconclusive."""
    trained = replace(LAYERS, **WRONG[name])  # type: ignore[arg-type]
    report = audited(tmp_path / "t", Way(LAYERS, start=3.0), Fault(clips=trained))
    is_shorter = name == "exchanged"
    expected = Verdict.INCONCLUSIVE if is_shorter else Verdict.VIOLATION
    assert report.verdict is expected
    assert codes(report, expected) == {"LC317"}


SEEDS = 25
OPTIMIZERS = (
    torch.optim.SGD,
    partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01),
    torch.optim.Adam,
    torch.optim.RMSprop,
    partial(torch.optim.SGD, momentum=0.5, nesterov=True),
)


def run(folder, name: str, seed: int) -> AuditReport:
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
def test_no_right_run_is_blamed(name: str, seed: int, tmp_path) -> None:
    """25 of each of 13 ways, all tests by chance of which may blame one in a million; what is no
    matter of chance never may."""
    report = run(tmp_path / "t", name, seed)
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())
