"""What a private run leaves: its trace, audited with the data; the weights of its last release."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from lipcert.audit.records import AuditReport, Verdict
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.records import Close
from lipcert.errors import UsageError
from lipcert.gradient_stats.examples import outside
from lipcert.settings.settings import Settings
from lipcert.training import Loss, WeightClipping
from lipcert.training.kept_numbers import KeptNumbers
from lipcert.verbs import audit
from tests.refusals import refused
from tests.training.runs import (
    CLASSES,
    EXAMPLES,
    FEATURES,
    Small,
    data,
    lines,
    private_run,
    train,
)


def audited(run, data: object) -> AuditReport:
    return audit(run / "model.lipcert.json", trace=str(run / "trace"), data=data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("private") / "run"
    with private_run(folder, record_data=False) as private:
        train(private)
    return folder


def test_the_data_are_not_in_the_trace(run) -> None:
    steps = list(read_trace(run / "trace").steps())
    batches = [batch for step in steps for batch in step.batches if batch.examples]
    assert batches
    assert all(batch.tensors is None and batch.name is not None for batch in batches)


def test_it_is_audited_with_the_data_set(run, tmp_path) -> None:
    """Of norm 1 up to rounding, so that examples were drawn into the ball on their way."""
    x, y = (tensor.numpy() for tensor in data().tensors)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    steps = list(read_trace(run / "trace").steps())
    assert any(batch.name.drawn for step in steps for batch in step.batches if batch.name)
    report = audited(run, tmp_path / "data.npz")
    assert report.verdict is Verdict.PASS, report.reasons
    assert ["a seed below 2³²" in note for note in report.notes] == [True]
    assert report.examples == sum(batch.examples for step in steps for batch in step.batches)
    assert {"contribution", "agreement"} <= {check.name for check in report.checks}


def test_inputs_are_recorded_as_a_step_admits_them(tmp_path) -> None:
    """Also where the module's own pass is left out, from the second step on."""
    x, y = data().tensors
    with private_run(tmp_path / "run", examples=TensorDataset(x * (1.0 + 2.0**-23), y)) as private:
        train(private)
    batches = [b for step in read_trace(tmp_path / "run" / "trace").steps() for b in step.batches]
    inputs = [b.tensors.tensors()["input"] for b in batches if b.tensors]
    assert len(inputs) > 1
    assert not any(outside(own, Settings(input_norm=1.0)) for own in inputs)


def test_other_data_are_replayed_at_every_recorded_set_of_weights(run, tmp_path) -> None:
    x, y = (tensor.numpy() for tensor in data(seed=5).tensors)
    np.savez(tmp_path / "test.npz", x=x, y=y)
    report = audited(run, tmp_path / "test.npz")
    assert report.examples % EXAMPLES == 0
    assert any("are not those that the network read" in text for text in report.notes)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert [reason[:7] for reason in report.reasons] == ["[LC318]"]


class Faint(nn.Linear):
    """Reads also what is below 0 but for rounding up: 4·0.7 − 3 units of 2⁻²³, at x = 1."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.faint = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        part, most = 0.7 * 2.0**-23, 1.0 + 3.0 * 2.0**-23
        logits: Tensor = self.faint((x + part + part + part + part - most).relu())
        return logits + super().forward(x)


def test_what_rounding_leaves_of_a_gradient_of_0_is_not_released(tmp_path) -> None:
    examples = TensorDataset(torch.ones(EXAMPLES, FEATURES), data().tensors[1])
    (weight,) = torch.autograd.grad((net := Faint())(examples.tensors[0]).sum(), net.faint.weight)
    assert weight.any()
    mechanism = WeightClipping(radius=1.0, bias_norm=1.0, loss=Loss(), input_box=(0.0, 1.0))
    with private_run(tmp_path, mechanism, network=Faint, examples=examples) as private:
        before = private.model.get_parameter("faint.weight").detach().clone()
        train(private)
    assert torch.equal(private.model.get_parameter("faint.weight"), before)
    assert audited(tmp_path, examples.tensors).verdict is Verdict.PASS


class HalfFrozen(Small):
    """Its first layer stays, and it remembers a number."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(FEATURES))


IN_PLACE = "model.head.weight.data[0, 0] += 1e-3"
CHANGES = {
    "a second optimizer": "other = torch.optim.SGD(model.parameters(), lr=0.1); model.eval()\n"
    "labels = torch.zeros(4, dtype=torch.long)\n"
    "nn.functional.cross_entropy(model(torch.ones(4, 6)), labels).backward(); other.step()",
    "in place": IN_PLACE,
    "loaded": "state = model.state_dict().items()\n"
    "model.load_state_dict({name: item + 1e-3 for name, item in state})",
    "assigned": "model.head.weight = nn.Parameter(model.head.weight * 1.01)",
    "replaced": "model.head = nn.Linear(5, 3)",
    "frozen": "model.hidden.weight.data.mul_(0.5)",
    "buffer": "model.seen.copy_(torch.ones(6))",
    "new buffer": "model.register_buffer('mean', torch.ones(6))",
    "new parameter": "model.head.register_parameter('scale', nn.Parameter(torch.ones(1)))",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_after_the_last_step_is_no_release(change: str) -> None:
    private = private_run(network=HalfFrozen, record_every=None, steps=1)
    train(private)
    lines(private, change)
    with pytest.raises(UsageError):
        private.__exit__(None, None, None)
    assert not private.model._forward_hooks  # it was closed all the same
    private.close()


def test_a_change_before_the_first_step_is_no_release() -> None:
    """The bounds were taken, and the certificate was issued, with the weights from before."""
    private = private_run()
    lines(private, IN_PLACE)
    with pytest.raises(UsageError, match=r"head\.weight was changed"):
        train(private)
    assert private.releases == 0


@pytest.mark.usefixtures("uncertified")
def test_the_trace_of_changed_weights_does_not_end(tmp_path) -> None:
    for name, change in (("kept", ""), ("changed", IN_PLACE)):
        private = private_run(tmp_path / name, steps=1)
        train(private)
        lines(private, change)
        with refused("differs from what was released" if change else "", UsageError):
            private.close()
        events = list(read_trace(tmp_path / name / "trace").events(0))
        assert isinstance(events[-1], Close) == (not change)


def test_what_is_done_with_released_weights() -> None:
    """Averages of them, evaluation, another device or dtype behind the end: all of it is free."""
    torch.manual_seed(0)
    averages: list[AveragedModel] = []

    def network() -> nn.Module:
        module = Small()
        averages.append(AveragedModel(module))
        return module

    with private_run(network=network) as private:
        for x, y in private.loader:
            private.step(x, y)
            averages[0].update_parameters(private.model)
        held = {name: item.clone() for name, item in private.model.state_dict().items()}
        private.model.load_state_dict(averages[0].module.state_dict())  # to be evaluated …
        private.model.eval()(torch.ones(2, FEATURES))
        private.model.load_state_dict(held)  # … and put back
        private.model.train()
    private.model.load_state_dict(averages[0].module.state_dict())
    private.model.double()
    private.close()


def test_an_error_in_the_body_is_the_one_that_is_told() -> None:
    private = private_run()
    lines(private, IN_PLACE)
    error = ZeroDivisionError()
    private.__exit__(type(error), error, None)
    assert not private.model._forward_hooks


@pytest.mark.usefixtures("uncertified")
def test_closing_hides_no_error_of_the_body(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = private_run(tmp_path)
    monkeypatch.setattr(type(private.release.recorder), "__exit__", lambda *unused: 1 / 0.0)
    error = KeyError("of the body")
    private.__exit__(type(error), error, None)
    assert "closing the run failed, too" in error.__notes__[0]


@pytest.mark.usefixtures("uncertified")
def test_no_end_is_claimed_where_comparing_fails(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = private_run(tmp_path, steps=1)
    train(private)
    monkeypatch.setattr(KeptNumbers, "require_released", lambda *unused: 1 / 0.0)
    with pytest.raises(ZeroDivisionError):
        private.close()
    assert not isinstance(list(read_trace(tmp_path / "trace").events(0))[-1], Close)


def test_a_place_in_memory_does_not_matter_at_the_end() -> None:
    with private_run(steps=1) as private:
        train(private)
        for parameter in private.model.parameters():
            parameter.data = parameter.data.clone()
    assert private.releases == 1
