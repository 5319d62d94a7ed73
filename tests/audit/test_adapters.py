"""The adapters: Opacus where it is installed, Lightning by the hooks that its Trainer calls."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.audit.lightning import LipCertCallback
from lipcert.audit.opacus import attach_opacus
from lipcert.audit.trace.reading import read_trace
from lipcert.audit.trace.records import Reduction
from lipcert.audit.trace.verification import verify
from lipcert.errors import UsageError
from lipcert.privacy.plan import Sampling

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.rand(200, 5, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(2))


def test_opacus(tmp_path: Path) -> None:
    engine = pytest.importorskip("opacus", reason="Opacus is not installed").PrivacyEngine()
    model = nn.Sequential(nn.Linear(5, 60), nn.Tanh(), nn.Linear(60, 3))
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        data_loader=DataLoader(TensorDataset(X, Y), batch_size=20),
        noise_multiplier=2.0,
        max_grad_norm=0.5,
    )
    with lipcert.Recorder(tmp_path / "t", model, optimizer, every=1) as recorder:
        attach_opacus(recorder, optimizer, loader)
        loss_fn = recorder.wrap_loss(nn.CrossEntropyLoss())
        for x, y in loader:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
    assert verify(tmp_path / "t").faults == ()
    trace = read_trace(tmp_path / "t")
    declared = trace.manifest.declaration
    assert (declared.noise_multiplier, declared.clip_norms) == (2.0, {"all": 0.5})
    assert (declared.batch_size, declared.divisor) == (20, 20.0)
    assert (declared.sampling, declared.sampling_rate) == (Sampling.POISSON, 0.1)
    assert declared.reduction is Reduction.MEAN
    assert declared.groups == {"all": ("0.weight", "0.bias", "2.weight", "2.bias")}
    steps = list(trace.steps())
    assert len(steps) == len(loader)
    residuals = []
    for step in steps:
        assert step.noise.std == {"all": 1.0}
        clean, noised = step.gradients.clean.tensors(), step.gradients.noised.tensors()
        residuals += [(noised[name] - clean[name]).ravel() for name in clean]
        length = np.sqrt(sum(float((array**2).sum()) for array in clean.values()))
        assert length <= 0.5 * step.batches[0].examples * (1 + 1e-5)
        applied = step.gradients.applied.tensors()
        assert applied["0.weight"] == pytest.approx(noised["0.weight"] / 20, rel=1e-6)
    assert np.concatenate(residuals).std() == pytest.approx(1.0, rel=0.05)


def test_other_optimizers_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = lipcert.Recorder(tmp_path / "t", model, optimizer)
    with pytest.raises(UsageError, match="make_private"):
        attach_opacus(recorder, optimizer)
    recorder.close()


class Module(nn.Module):
    """What a LightningModule is to the callback."""

    def __init__(self, criterion) -> None:
        super().__init__()
        self.net = nn.Linear(5, 3)
        self.criterion = criterion

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        return self.criterion(self(batch[0]), batch[1])


def fit(module: Module, callback, fails: bool = False) -> None:
    """The calls that a Trainer makes, in its order."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    trainer = SimpleNamespace(optimizers=[optimizer], global_rank=0, world_size=1)
    callback.on_fit_start(trainer, module)
    try:
        for first in range(0, 40, 10):
            optimizer.zero_grad()
            module.training_step((X[first : first + 10], Y[first : first + 10])).backward()
            optimizer.step()
        if fails:
            raise ValueError
    except ValueError as error:
        callback.on_exception(trainer, module, error)
        return
    callback.on_fit_end(trainer, module)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.functional.cross_entropy])
def test_lightning_hooks(tmp_path: Path, loss) -> None:
    module = Module(loss)
    callback = LipCertCallback(
        tmp_path / "t", loss="criterion", every=2, declared={"dataset_size": 200}
    )
    fit(module, callback)
    assert module.criterion is loss
    assert callback.recorder is None
    steps = list(read_trace(tmp_path / "t").steps())
    assert [step.batches[0].examples for step in steps] == [10] * 4
    assert all(step.batches[0].loss is not None for step in steps)
    assert read_trace(tmp_path / "t").manifest.declaration.dataset_size == 200
    assert verify(tmp_path / "t").ranks[0].closed


def test_lightning_failures(tmp_path: Path) -> None:
    fit(Module(nn.CrossEntropyLoss()), LipCertCallback(tmp_path / "t"), fails=True)
    found = verify(tmp_path / "t")
    assert (found.faults, found.steps, found.ranks[0].closed) == ((), 4, False)


def test_lightning_needs_one_optimizer_and_the_loss(tmp_path: Path) -> None:
    module = Module(nn.CrossEntropyLoss())
    with pytest.raises(UsageError, match="0 optimizers"):
        LipCertCallback(tmp_path / "t").on_fit_start(SimpleNamespace(optimizers=[]), module)
    with pytest.raises(UsageError, match="no attribute 'objective'"):
        fit(module, LipCertCallback(tmp_path / "u", loss="objective"))
