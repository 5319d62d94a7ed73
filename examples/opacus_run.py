"""The same network on the same digits by Opacus, recorded for an audit, and by `lipcert.training`.

python examples/opacus_run.py opacus FOLDER      a trace in FOLDER, for `lipcert audit`
python examples/opacus_run.py half FOLDER        the same with half of the noise that is stated
python examples/opacus_run.py clipping FOLDER    DP-SGD by LipCert: clipped gradients
python examples/opacus_run.py clipless FOLDER    weights that bound gradients; nothing to clip
"""

from __future__ import annotations

import sys
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.audit.opacus import attach_opacus
from lipcert.training import Clipless, GradientClipping, Loss, TrainingMechanism, make_private

TRAIN, BATCH, EPOCHS, SIGMA, DELTA = 1400, 200, 10, 2.0, 1e-5
CLIPPING = GradientClipping(clip_norm=1.0, loss=Loss("cross-entropy"))
CLIPLESS = Clipless(
    radius=1.0, orthogonalize=1, loss=Loss("cross-entropy", temperature=1 / 16), loss_clip=6.4,
    input_norm=1.0,
)  # fmt: skip
warnings.filterwarnings("ignore", category=UserWarning)


def by_opacus(model: nn.Module, data: TensorDataset, folder: Path) -> None:
    """An ordinary run of Opacus, and three lines with `recorder`."""
    from opacus import PrivacyEngine

    engine, loss_fn = PrivacyEngine(), nn.CrossEntropyLoss()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(data, batch_size=BATCH),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
    )
    with lipcert.Recorder(folder / "trace", model, optimizer, every=20) as recorder:
        attach_opacus(recorder, optimizer, loader)
        loss_fn = recorder.wrap_loss(loss_fn)
        for _ in range(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                optimizer.step()
        print(f"{recorder.step} steps, ε = {engine.get_epsilon(DELTA):.2f} by Opacus")


def by_lipcert(
    model: nn.Module, data: TensorDataset, folder: Path, mechanism: TrainingMechanism, lr: float
) -> None:
    """Its certificate, ledger and trace are in the folder."""
    optimizer = SGD(model.parameters(), lr=lr)
    with make_private(
        model, optimizer, DataLoader(data, batch_size=BATCH), mechanism, noise_multiplier=SIGMA,
        delta=DELTA, epochs=EPOCHS, dataset_size=TRAIN, folder=folder, record_every=20,
    ) as private:  # fmt: skip
        for x, y in private.loader:
            optimizer.zero_grad()
            private.criterion(model(x), y).backward()
            optimizer.step()
        print(private.ledger.summary)


def half_of_the_noise() -> AbstractContextManager[object]:
    """The fault: Opacus draws with half of the deviation that it is asked for."""
    from opacus.optimizers import optimizer

    drawn = optimizer._generate_noise
    return patch.object(optimizer, "_generate_noise", lambda std, **more: drawn(std / 2, **more))


def main(way: str, folder: Path) -> None:
    pixels, labels = load_digits(return_X_y=True)
    x, y = nn.functional.normalize(torch.from_numpy(pixels).float()), torch.from_numpy(labels)
    data = TensorDataset(x[:TRAIN], y[:TRAIN])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", x=x[:TRAIN].numpy(), y=y[:TRAIN].numpy())
    if way == "opacus":
        lipcert.export(model, x[:2], folder / "net.onnx")
        by_opacus(model, data, folder)
    elif way == "half":
        with half_of_the_noise():
            by_opacus(model, data, folder)
    elif way == "clipping":
        by_lipcert(model, data, folder, CLIPPING, lr=1.0)
    else:
        by_lipcert(model, data, folder, CLIPLESS, lr=0.05)
    right = (model.eval()(x[TRAIN:]).argmax(dim=1) == y[TRAIN:]).double().mean()
    print(f"accuracy {right:.2f} on {len(y) - TRAIN} other digits")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
