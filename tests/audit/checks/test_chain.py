"""Weights follow from the recorded steps, or the audit says where something else changed them."""

import json
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import lipcert
from lipcert.audit.checks import check_recorded_run
from lipcert.audit.checks.chain import _stepped, chain, is_projection, updates_of
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import Verdict
from lipcert.audit.trace.blobs import Blob, BlobStore, stored
from lipcert.audit.trace.files import sealed
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.records import Step
from lipcert.audit.trace.redaction import redact
from tests.audit.checks.runs import SETTINGS, Network, Plan, audited, bad, claims_for, recorded

pytestmark = pytest.mark.filterwarnings("ignore::lipcert.audit.trace.writing.PrivateDataWarning")
SGD, ADAM = torch.optim.SGD, torch.optim.Adam
OPTIMIZERS = {
    "momentum": partial(SGD, lr=0.2, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": partial(SGD, lr=0.2, momentum=0.9, nesterov=True, foreach=True),
    "adam": partial(ADAM, lr=0.02, betas=(0.8, 0.99)),
    "amsgrad": partial(ADAM, lr=0.02, amsgrad=True, weight_decay=0.1),
    "fused": partial(ADAM, lr=0.1, fused=True),
    "adamw": partial(torch.optim.AdamW, lr=0.02),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.02, momentum=0.5, centered=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
    "a named group": lambda parameters: ADAM([{"params": list(parameters), "name": "all"}], 0.02),
}


def followed(folder, **changes: object):
    """The check alone."""
    return chain(RecordedRun(*recorded(folder, Plan(**changes))))


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_update_of_an_optimizer_is_done_again(name: str, tmp_path) -> None:
    found = followed(tmp_path / "t", optimizer=OPTIMIZERS[name], detail=1, steps=6)
    (report,) = found.reports
    assert (report.verdict, found.not_done) == (Verdict.PASS, ())
    assert "repeated at 6 of 6 steps, and 5 steps start from the weights" in report.message
    assert "gaps" not in report.message


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "NAdam", "RMSprop", "Adagrad"])
def test_the_update_of_a_single_number_is_done_again(name: str) -> None:
    kind, weight = getattr(torch.optim, name), torch.nn.Parameter(torch.tensor(0.5))
    optimizer = kind([weight])
    for gradient in (0.3, -0.2):
        weight.grad = torch.tensor(gradient)
        before = weight.detach().numpy().copy()
        state = {f"{k}@t": v.numpy().copy() for k, v in optimizer.state.get(weight, {}).items()}
        optimizer.step()
    record = SimpleNamespace(groups=[SimpleNamespace(parameters=["t"], options={})])
    given = {"t": before}, {"t": weight.grad.numpy()}, state
    found = _stepped(kind, record, given, torch.float64)
    assert found["t"] == pytest.approx(weight.item(), rel=1e-6)


def test_the_whole_run_of_an_optimizer_passes_all_checks(tmp_path) -> None:
    assert bad(audited(tmp_path / "t", optimizer=OPTIMIZERS["adam"])) == set()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_run_resumes_from_weights_that_it_had(is_known: bool, tmp_path) -> None:
    recorded(tmp_path / "t", Plan(detail=1, steps=3))
    start = {} if is_known else {"changed": partial(moved, step=0)}
    (report,) = followed(tmp_path / "t", detail=1, steps=3, **start).reports
    assert report.verdict is (Verdict.PASS if is_known else Verdict.INCONCLUSIVE)
    assert ("after an interruption" in report.message) is not is_known


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [(type("Own", (SGD,), {}), "Own is not an"), (torch.optim.Adafactor, "not numbers (eps)")],
)
def test_an_optimizer_whose_steps_cannot_be_repeated_is_no_pass(optimizer, says, tmp_path) -> None:
    found = followed(tmp_path / "t", optimizer=optimizer, detail=1)
    (report,) = found.reports
    assert (report.verdict, says in report.message) == (Verdict.INCONCLUSIVE, True)
    assert "torch.optim" in report.remedy


@torch.no_grad()
def moved(network: Network, step: int, at: int | None = None, held: bool = False) -> None:
    """By what a second optimizer without noise would do. at: at this step alone."""
    if at in {None, step}:
        random = torch.Generator().manual_seed(step)
        for weight in network.parameters():
            weight.sub_(1e-3 * torch.randn(weight.shape, generator=random))
    if held:
        network.project()


@torch.no_grad()
def replaced(network: Network, step: int) -> None:
    if step == 6:
        for weight in network.parameters():
            weight.copy_(0.05 * torch.ones_like(weight))


FAULTS = {
    "a second optimizer after every step": moved,
    "a second optimizer, and projected again": partial(moved, held=True),
    "once": partial(moved, at=4),
    "weights replaced in the middle": replaced,
}


@pytest.mark.parametrize("detail", [1, 2], ids=["every step", "every second step"])
@pytest.mark.parametrize("name", FAULTS)
def test_what_changes_weights_between_steps_is_found(name: str, detail: int, tmp_path) -> None:
    found = followed(tmp_path / "t", after_projection=FAULTS[name], detail=detail)
    assert {(report.code, report.verdict) for report in found.reports} == {
        ("LC321", Verdict.VIOLATION)
    }
    assert re.search(r"changed between step \d+ and step \d+, by", found.reports[0].message)


class Unnoised(torch.optim.SGD):
    """Adds something of its own to the step of its base class, and has its name."""

    def step(self, closure=None):
        result = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.sub_(1e-3 * torch.ones_like(weight))
        return result


Unnoised.__module__, Unnoised.__qualname__ = SGD.__module__, SGD.__qualname__


def test_a_step_that_does_more_than_its_optimizer_is_found(tmp_path) -> None:
    found = followed(tmp_path / "t", optimizer=partial(Unnoised, lr=0.2), detail=3)
    assert {report.verdict for report in found.reports} == {Verdict.VIOLATION}
    assert "from what torch.optim.sgd.SGD computes from its gradient" in found.reports[0].message


def begun(parameters) -> torch.optim.Optimizer:
    made = torch.optim.Adagrad(parameters, 0.1)
    for state in made.state.values():
        state["sum"].view(-1)[0] += 0.01
    return made


def test_a_state_that_is_not_new_is_no_pass(tmp_path) -> None:
    found = followed(tmp_path / "t", optimizer=begun, detail=1)
    assert {report.verdict for report in found.reports} == {Verdict.INCONCLUSIVE}
    assert "after steps that are not recorded" in found.reports[0].message


def test_weights_of_an_earlier_step_come_back_for_a_reason(tmp_path) -> None:
    """They were released before, but a private loss may have chosen them."""
    kept: dict[str, torch.Tensor] = {}

    def returns(network: Network, step: int) -> None:
        if step == 2:
            kept.update({name: x.clone() for name, x in network.state_dict().items()})
        if step == 7:
            network.load_state_dict(kept)

    (report,) = followed(tmp_path / "t", after_projection=returns, detail=1).reports
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "step 8 starts from weights of an earlier step" in report.message


def test_gaps_are_stated_with_their_length(tmp_path) -> None:
    plan = {"detail": [0, 1, 7], "every": 12, "after_projection": partial(moved, at=4)}
    (report,) = followed(tmp_path / "t", **plan).reports
    assert report.verdict is Verdict.PASS
    assert (
        "gaps: for 9 steps nothing shows what changed the weights; the longest gap has 5 steps "
        "(from step 2 to step 6)" in report.message
    )


def test_the_step_after_a_detailed_one_records_where_it_starts(tmp_path) -> None:
    _, trace = recorded(tmp_path / "t", Plan(detail=[2, 5], every=6))
    starts = [step.number for step in trace.steps() if step.weights_start is not None]
    assert starts == [3]  # step 6 records weights_before
    found = followed(tmp_path / "u", detail=[2, 5], every=12, after_projection=partial(moved, at=2))
    assert {report.where.partition(",")[0] for report in found.reports} == {
        "between step 2 and step 3"
    }


class Frozen(nn.Module):
    """A trained layer behind a frozen one, with a buffer that holds −∞ as a mask does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 12, bias=False), nn.Linear(12, 3, bias=False)
        self.first.weight.requires_grad_(False)
        self.register_buffer("seen", torch.tensor([-torch.inf, 0.0, 0.0]))
        self.register_buffer("running_mean", torch.zeros(1))
        self.register_buffer("count", torch.zeros(3, dtype=torch.long))
        self.register_buffer("mask", torch.zeros(3, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


def frozen_run(folder, change, inside: bool, settings: lipcert.Settings = SETTINGS):
    model = Frozen()
    optimizer = SGD(model.last.parameters(), lr=0.1)
    with lipcert.Recorder(folder, model, optimizer, every=1) as recorder:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 8)).square().sum()
            if inside:
                change(model, step)
            loss.backward()
            optimizer.step()
            if not inside:
                change(model, step)
    assert recorder.step == 4
    claims = claims_for(Network(), settings)
    return chain(RecordedRun(claims, read_trace(folder)))


@torch.no_grad()
def thawed(model: Frozen, step: int) -> None:
    model.first.weight.add_(1e-4 * (step == 2))


@pytest.mark.parametrize("inside", [False, True], ids=["between", "within"])
def test_frozen_parameters_stay(inside: bool, tmp_path) -> None:
    right = frozen_run(tmp_path / "r", lambda model, _step: model.count.add_(1), inside)
    assert [report.verdict for report in right.reports] == [Verdict.PASS]
    (report,) = frozen_run(tmp_path / "t", thawed, inside).reports
    assert (report.verdict, "'first.weight'" in report.message) == (Verdict.VIOLATION, True)
    assert ("does not train it" in report.message) is inside


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: w.mul_(0.9), "but none is accounted for"),
        (lambda w: w.clamp_(-0.2, 0.2), "but none is accounted for"),
        (lambda w: w.mul_(w.abs() > 0.1), "as setting entries to 0 would"),
        (lambda w: w.lerp_(Frozen().last.weight, 0.5), "as averaging with earlier weights would"),
    ],
)
def test_post_processing_that_is_not_accounted_for_is_undecided(change, says, tmp_path) -> None:
    """It may be right, but nothing shows that its numbers are public; a second optimizer beside it
    is found."""

    @torch.no_grad()
    def changed(model: Frozen, step: int, at: int = 9) -> None:
        change(model.last.weight)
        moved(model, step, at=at)

    known = Verdict.PASS if "accounted" in says else Verdict.INCONCLUSIVE
    clipped = lipcert.Settings(mechanism="gradient-clipping", clip_norm=1.0)
    assert {r.verdict for r in frozen_run(tmp_path / "r", changed, False).reports} == {known}
    found = frozen_run(tmp_path / "t", changed, False, clipped)
    assert {report.verdict for report in found.reports} == {Verdict.INCONCLUSIVE}
    assert all(says in report.message for report in found.reports)
    found = frozen_run(tmp_path / "s", partial(changed, at=2), False, clipped)
    worst = [r.message for r in found.reports if r.verdict is Verdict.VIOLATION]
    assert ["'last.weight'" in message for message in worst] == [False, True]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("seen", ("LC321", Verdict.INCONCLUSIVE)),
        ("running_mean", ("LC316", Verdict.VIOLATION)),
        ("count", ("LC321", Verdict.INCONCLUSIVE)),
        ("mask", ("LC321", Verdict.INCONCLUSIVE)),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["between", "within"])
def test_a_buffer_that_changes_is_no_pass(name: str, said, inside: bool, tmp_path) -> None:
    """Only a count of the steps is right: others may count examples, or right answers."""

    def change(model: Frozen, k: int) -> None:
        model.get_buffer(name)[-1:] += torch.tensor(k).to(model.get_buffer(name).dtype)

    found = frozen_run(tmp_path / "t", change, inside)
    assert {(report.code, report.verdict) for report in found.reports} == {said}


def test_a_trace_without_optimizer_says_what_it_cannot_show(tmp_path) -> None:
    """As older recorders wrote it: the lines are chained anew without the new members."""
    claims, trace = recorded(tmp_path / "t", Plan(detail=3))
    older(tmp_path / "t")
    found = chain(RecordedRun(claims, read_trace(tmp_path / "t")))
    (report,) = found.reports
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "does not hold the optimizer and its state; record the run again" in report.message
    assert trace.digest == read_trace(tmp_path / "t").digest


def older(folder) -> None:
    path, head = folder / "steps-0.jsonl", read_trace(folder).digest
    lines = []
    for line in path.read_bytes().splitlines():
        members = json.loads(line)
        for name in ("h", "prev", "optimizer", "weights_start"):
            members.pop(name, None)
        sealed_line, head = sealed(members, head)
        lines.append(sealed_line)
    path.write_bytes(b"".join(lines))


def test_a_redacted_trace_keeps_what_weights_show(tmp_path) -> None:
    claims, _ = recorded(tmp_path / "t", Plan(detail=1, after_projection=moved))
    redact(tmp_path / "t", tmp_path / "r", keep_weights=True)
    found = check_recorded_run(claims, read_trace(tmp_path / "r"))
    assert ("LC321", "chain") in bad(found)
    redact(tmp_path / "t", tmp_path / "n")
    assert "chain" not in {
        r.name for r in check_recorded_run(claims, read_trace(tmp_path / "n")).reports
    }


def test_state_that_does_not_fit_is_no_crash(tmp_path) -> None:
    _, trace = recorded(tmp_path / "t", Plan(detail=3, steps=3, optimizer=OPTIMIZERS["adam"]))
    step = next(iter(trace.steps()))
    wrong = replace(step.optimizer, state=step.weights_before)
    assert isinstance(updates_of(replace(step, optimizer=wrong)), dict | str)
    group = replace(step.optimizer.groups[0], parameters=("none",))
    said = updates_of(replace(step, optimizer=replace(step.optimizer, groups=(group,))))
    assert isinstance(said, str)
    assert "does not accept" in said


@pytest.mark.parametrize(
    ("which", "code"),
    [(("applied",), "LC321"), (("noised",), "LC314"), (("noised", "applied"), "LC321")],
)
def test_gradients_in_half_precision_are_no_pass(which, code, tmp_path, monkeypatch) -> None:
    """Rounding to eight bits could hide what was added."""
    claims, trace = recorded(tmp_path / "t", Plan(detail=1, steps=3))
    store = BlobStore(tmp_path / "t", 9)

    def rounded(blob: Blob) -> Blob:
        tensors = blob.tensors().items()
        return store.put({name: stored(array.astype(np.float16)) for name, array in tensors})

    def forged(step: Step) -> Step:
        changed = {name: rounded(getattr(step.gradients, name)) for name in which}
        return replace(step, gradients=replace(step.gradients, **changed))

    events = [forged(item) if isinstance(item, Step) else item for item in trace.events(0)]
    monkeypatch.setattr(type(trace), "events", lambda *_: iter(events))
    found = check_recorded_run(claims, trace)
    assert code in {name for name, _ in bad(found)}
    assert {r.verdict for r in found.reports if r.code == code} <= {
        Verdict.INCONCLUSIVE,
        Verdict.PASS,
    }


def clipped(array: np.ndarray) -> np.ndarray:
    u, s, v = np.linalg.svd(array.astype(np.float32), full_matrices=False)
    return (u * np.minimum(s, 1.0)) @ v


def orthogonal(array: np.ndarray) -> np.ndarray:
    u, _, v = np.linalg.svd(array.astype(np.float32), full_matrices=False)
    return u @ v


FORMS = {
    "scaled": lambda array: np.float32(0.7) * array,
    "singular values": clipped,
    "orthogonal": orthogonal,
    "rows": lambda rows: rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0),
    "cut off": lambda array: np.clip(array, -0.9, 0.9),
}


@pytest.mark.parametrize("shape", [(30, 50), (64, 5), (40, 1)])
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_projections_are_told_from_other_changes(form, shape) -> None:
    random = np.random.default_rng(0)
    source = random.standard_normal(shape).astype(np.float32)
    target = FORMS[form](source).astype(np.float32).astype(float)
    assert is_projection(source.astype(float), target, 2.0**-24)
    for other in (target + 1e-3 * random.standard_normal(shape), -target):
        assert not is_projection(source.astype(float), other, 2.0**-24)
