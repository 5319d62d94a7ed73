"""The trace of a private run: without its data unless asked for, and audited with the data set."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lipcert.audit.records import AuditReport, Verdict
from lipcert.audit.trace.reading import read_trace
from lipcert.training import Loss, WeightClipping
from lipcert.verbs import audit
from tests.training.runs import CLASSES, EXAMPLES, FEATURES, data, private_run, train


def audited(run: Path, data: object) -> AuditReport:
    return audit(run / "model.lipcert.json", trace=str(run / "trace"), data=data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private") / "run"
    with private_run(folder, record_data=False) as private:
        train(private)
    return folder


def test_the_data_are_not_in_the_trace(run: Path) -> None:
    steps = list(read_trace(run / "trace").steps())
    batches = [batch for step in steps for batch in step.batches if batch.examples]
    assert batches
    assert all(batch.tensors is None and batch.name is not None for batch in batches)


def test_it_is_audited_with_the_data_set(run: Path, tmp_path: Path) -> None:
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


def test_other_data_are_replayed_at_every_recorded_set_of_weights(
    run: Path, tmp_path: Path
) -> None:
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


def test_what_rounding_leaves_of_a_gradient_of_0_is_not_released(tmp_path: Path) -> None:
    examples = TensorDataset(torch.ones(EXAMPLES, FEATURES), data().tensors[1])
    (weight,) = torch.autograd.grad((net := Faint())(examples.tensors[0]).sum(), net.faint.weight)
    assert weight.any()
    mechanism = WeightClipping(radius=1.0, bias_norm=1.0, loss=Loss(), input_box=(0.0, 1.0))
    with private_run(tmp_path, mechanism, network=Faint, examples=examples) as private:
        before = private.model.get_parameter("faint.weight").detach().clone()
        train(private)
    assert torch.equal(private.model.get_parameter("faint.weight"), before)
    assert audited(tmp_path, examples.tensors).verdict is Verdict.PASS
