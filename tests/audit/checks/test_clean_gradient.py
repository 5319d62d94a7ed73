"""The sum of gradients that cancel against a decay inside the clip, and one that is not the sum."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lipcert.audit import observation
from lipcert.audit.bounds import claims_of_analysis
from lipcert.audit.checks import Checked, check_recorded_run, clean_gradient
from lipcert.audit.recorder import Recorder
from lipcert.audit.records import CheckReport, Verdict
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.records import Arithmetic
from lipcert.settings.settings import Settings
from tests.audit.checks.runs import array_of
from tests.networks import dag, trained
from tests.ops import Dense
from tests.written import model_of

COUNT, MANY, TRUTH, DECAY = 1000, 4000, 3.8, 0.5
RIDGE = TRUTH / (1.0 + DECAY)


def audited(
    folder, weight: float, count: int = COUNT, left_out: int = 0, room: float = 0.0
) -> Checked:
    """One recorded step of y = 3.8·x, |x| = 1, whose gradients are added up apart from the decay.

    The sums are those of a plain loop in float32. left_out: examples that it forgets; room: the
    share of the radius by which every clipped gradient is shorter.
    """
    torch.manual_seed(0)
    network = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        network.weight.fill_(weight)
    x = torch.ones(count, 1) - 2.0 * (torch.arange(count) % 2)[:, None]
    graph = dag((1,), [("o", Dense(trained("weight", array_of(network.weight))), ("x",))])
    claims = claims_of_analysis(
        model_of(graph),
        Settings(
            mechanism="gradient-clipping", clip_norm=1.0, decay="inside", input_norm=1.0,
            loss="mse", label_norm=TRUTH, half=True,
        ),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        recorder = Recorder(folder, network, optimizer, every=1, detail=1, store_data=True)
        recorder.declare(
            dataset_size=count, batch_size=count, sampling="full-batch", steps=1,
            noise_multiplier=1.0, weight_decay=DECAY,
        )  # fmt: skip
        recorder.batch(index=range(count), sampler="full-batch", rate=1.0, divisor=1.0)
        loss_fn = recorder.wrap_loss(functional.mse_loss)
        output = network(x)
        loss_fn(output, TRUTH * x, reduction="sum").backward()
        own = (output - TRUTH * x).detach().numpy()[left_out:, 0] * x.numpy()[left_out:, 0]
        theta = np.float32(weight)
        lengths = np.abs(own + np.float32(DECAY) * theta)
        factors = np.where(lengths > 1.0, np.float32(1.0 - room) / lengths, np.float32(1.0))
        total = np.cumsum(factors * own)[-1] + np.sum(factors) * np.float32(DECAY) * theta
        recorder.gradients(clean={"weight": torch.tensor([[float(total)]])})
        optimizer.step()
        recorder.close()
    return check_recorded_run(claims, read_trace(folder))


def agreement(checked: Checked) -> CheckReport:
    (report,) = (r for r in checked.reports if r.name == "agreement")
    return report


@pytest.mark.sample(3)
@pytest.mark.parametrize("off", [0.0, 1e-9, 1e-8, 1e-7, 3e-6, 1e-4, 0.02, 0.5])
def test_sums_that_cancel_against_the_decay_are_what_rounding_explains(
    off: float, tmp_path
) -> None:
    report = agreement(audited(tmp_path / "t", RIDGE + off))
    assert (report.verdict, report.where) == (Verdict.PASS, "step 0")
    assert (report.measured or 0.0) > 0.0


@pytest.mark.sample(1)
@pytest.mark.parametrize("off", [0.02, 0.5])
def test_examples_that_are_left_out_show_next_to_the_decay(off: float, tmp_path) -> None:
    report = agreement(audited(tmp_path / "t", RIDGE + off, left_out=COUNT // 10))
    assert report.verdict is not Verdict.PASS


@pytest.mark.parametrize(("room", "is_right"), [(0.0, True), (2.0**-20, True), (1e-3, False)])
@pytest.mark.parametrize("count", [1, 8])
def test_a_clip_may_leave_room_for_its_rounding(
    room: float, is_right: bool, count: int, tmp_path
) -> None:
    report = agreement(audited(tmp_path / "t", RIDGE + 5.0, count=count, room=room))
    assert (report.verdict is Verdict.PASS) is is_right


@pytest.mark.parametrize("count", [4, 64])
@pytest.mark.parametrize("weight", [1e2, 1e4, 1e6])
def test_one_example_that_is_left_out_shows_next_to_a_long_decay(
    weight: float, count: int, tmp_path
) -> None:
    """λθ is thousands of radii long, and what the clip leaves of it one."""
    for left_out, is_right in ((0, True), (1, False)):
        report = agreement(
            audited(tmp_path / str(left_out), weight, count=count, left_out=left_out)
        )
        assert (report.verdict is Verdict.PASS) is is_right


@pytest.mark.sample(left_out=2, autocast=1)
@pytest.mark.parametrize("autocast", [None, "bfloat16"])
@pytest.mark.parametrize(
    ("left_out", "verdict"), [(0, Verdict.PASS), (MANY // 4, Verdict.VIOLATION)]
)
def test_short_products_do_not_explain_examples_that_are_left_out_of_many(
    left_out: int, verdict: Verdict, autocast: str | None, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of 10 or 7 bits, of which 4000 roundings are more than the sum; sums have 23."""
    device = "cuda" if autocast is None else "cpu"
    used = Arithmetic(device, "float32", autocast, True, True, False)
    monkeypatch.setattr(observation, "arithmetic_of", lambda _: used)
    report = agreement(audited(tmp_path / "t", RIDGE + 5.0, MANY, left_out))
    assert report.verdict is verdict, report


@pytest.mark.parametrize("entries", [6, 7, 11])
def test_factors_of_as_many_examples_as_entries_explain_nothing(entries: int) -> None:
    """What a kink moves would be a factor of an example, and a right run be blamed."""
    random = np.random.default_rng(0)
    rows = np.zeros((6, 40))
    rows[:, :entries] = random.standard_normal((6, entries))
    moved = np.zeros(40)
    moved[:entries] = 0.01 * random.standard_normal(entries)

    def heaviest(rows: np.ndarray, theirs: np.ndarray) -> tuple[int, float] | None:
        d = float(np.linalg.norm(theirs - rows.sum(0)))
        return clean_gradient._heaviest(rows, theirs, d, 1e-9)

    assert heaviest(rows, rows.sum(0) + moved) is None
    wide = random.standard_normal((6, 40))
    found = heaviest(wide, wide.sum(0) + wide[2])
    assert found[0] == 2
    assert found[1] == pytest.approx(2.0)


@pytest.mark.parametrize("what", ["gradients", "entries"])
@pytest.mark.parametrize(("share", "is_shorter"), [(0.8, True), (1.2, False)])
def test_a_smaller_radius_explains_what_fewer_gradients_pass(
    share: float, is_shorter: bool, what: str
) -> None:
    rows = np.random.default_rng(0).standard_normal((6, 40)) * np.arange(1.0, 7.0)[:, None]
    lengths = np.linalg.norm(rows, axis=1)[:, None] if what == "gradients" else np.abs(rows)
    radius, parts = float(np.median(lengths)), 1 if what == "gradients" else 40
    theirs = (rows * np.minimum(1.0, share * radius / lengths)).sum(0)
    most = radius * math.sqrt(parts)
    found = clean_gradient._shorter(rows, [30, 10], theirs, most, 1e-5)
    assert (found is not None) is is_shorter
    assert found is None or found == (what, pytest.approx(share * radius, rel=1e-5))
    assert clean_gradient._shorter(0.0 * rows, [30, 10], theirs, most, 1e-5) is None
