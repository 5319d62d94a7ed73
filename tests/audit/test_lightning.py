"""Recording what a Trainer of Lightning does: batches, gradients within closures, and Opacus."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert.audit.lightning import LipCertCallback
from lipcert.audit.records import Verdict
from lipcert.audit.trace.reading import Trace, read_trace, verify
from lipcert.errors import UsageError
from tests.audit.checks.runs import check_applied
from tests.audit.opacus_runs import RADIUS, SIGMA, OpacusRun, audit_of, examples
from tests.models.shipped import module

lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
X, Y = examples()


class Digits(lightning.LightningModule):  # type: ignore[misc]
    """As users write it."""

    def __init__(self, loss: Any = None) -> None:
        super().__init__()
        self.net = module("digits_mlp", torch.float32).train()
        self.criterion = loss or nn.CrossEntropyLoss()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
        return self.criterion(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)


def loader(**options: Any) -> DataLoader:
    return DataLoader(TensorDataset(X, Y), batch_size=100, shuffle=True, **options)


def fit(folder, fitted: Any, *data: Any, loss: Any = "criterion", **trainer: Any) -> Trace:
    callback = LipCertCallback(folder, loss=loss, every=1, declared={"data": "digits"})
    options: dict[str, Any] = {"max_epochs": 2, "accelerator": "cpu", "logger": False}
    options |= {"enable_checkpointing": False, "enable_progress_bar": False}
    options |= {"enable_model_summary": False, **trainer}
    lightning.Trainer(callbacks=[callback], **options).fit(fitted, *data)
    assert callback.recorder is None
    return read_trace(folder)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_what_a_trainer_did_is_recorded(tmp_path, accumulated: int) -> None:
    """The applied gradient is that of the recorded examples at the recorded weights."""
    fitted = Digits()
    trace = fit(tmp_path / "t", fitted, loader(), accumulate_grad_batches=accumulated)
    steps = list(trace.steps())
    assert len(steps) == 8 // accumulated
    assert verify(tmp_path / "t").ranks[0].closed
    assert trace.manifest.declaration.data == "digits"
    assert {len(batch.index) for step in steps for batch in step.batches} == {100}
    check_applied(steps, fitted, X, Y)


class Private(Digits):
    """With Opacus, as its tutorial does it, and loader and loss of its own."""

    def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
        return self.loss(self(batch[0]), batch[1])

    @staticmethod
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, labels)

    def train_dataloader(self) -> DataLoader:
        from opacus.data_loader import DPDataLoader

        return DPDataLoader.from_data_loader(DataLoader(TensorDataset(X, Y), batch_size=40))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        from opacus import PrivacyEngine

        self.trainer.fit_loop.setup_data()
        wrapped, optimizer, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), 0.1),
            data_loader=self.trainer.train_dataloader,
            noise_multiplier=SIGMA,
            max_grad_norm=RADIUS,
        )
        self.net = wrapped
        return optimizer


@pytest.mark.nightly
def test_opacus_under_a_trainer_is_audited(tmp_path) -> None:
    pytest.importorskip("opacus", reason="Opacus is not installed")
    fit(tmp_path / "t", Private(), loss="loss", max_epochs=1)
    report = audit_of(tmp_path / "t", OpacusRun("under a Trainer"))
    assert (report.verdict, report.reasons) == (Verdict.PASS, ())


def test_a_fit_that_fails_leaves_what_it_recorded(tmp_path) -> None:
    class Failing(Digits):
        def on_train_batch_end(self, *_: Any) -> None:
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fit(tmp_path / "t", Failing(), loader())
    found = verify(tmp_path / "t")
    assert (found.faults, found.steps, found.ranks[0].closed) == ((), 1, False)


def test_a_module_that_does_not_call_itself_is_told(tmp_path) -> None:
    class Inner(Digits):
        def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
            return self.criterion(self.net(batch[0]), batch[1])

    with pytest.warns(UserWarning, match="call the recorded module itself"):
        fit(tmp_path / "t", Inner(), loader())


def test_one_optimizer_and_the_loss_are_needed(tmp_path) -> None:
    class Two(Digits):
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), 0.1) for _ in range(2)]

    with pytest.raises(UsageError, match="2 optimizers"):
        fit(tmp_path / "t", Two(), loader())
    with pytest.raises(UsageError, match="no attribute 'objective'"):
        fit(tmp_path / "u", Digits(), loader(), loss="objective")
