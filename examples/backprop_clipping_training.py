"""Backpropagation clipping (Stevens et al., 2022): train, certify, check, audit, report.

    python examples/backprop_clipping_training.py [FOLDER]

Every trained layer clips what it reads to β and the cotangent that reaches it to C, example by
example; weights are free. The layers of a step share one sample, so they are one release: composed
first, amplified by sampling after that.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from review_run import review, saved
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert.training import BackpropClipping, make_private

TRAIN = 1437


def main(folder: Path) -> int:
    """Train on digits at ε = 3, and review the run."""
    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(digits.images).float()[order, None] / 16.0
    y = torch.from_numpy(digits.target)[order]
    data = DataLoader(TensorDataset(x[:TRAIN], y[:TRAIN]), batch_size=512)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    mechanism = BackpropClipping(input_clip=3.0, cotangent_clip=0.5, input_box=(0.0, 1.0))
    with make_private(
        model, optimizer, data, mechanism, target_epsilon=3.0, delta=1e-5,
        epochs=20, dataset_size=TRAIN, folder=folder, record_every=20,
    ) as private:  # fmt: skip
        for images, labels in private.loader:
            optimizer.zero_grad()
            private.criterion(model(images), labels).backward()
            optimizer.step()
        print(private.ledger.summary)
        with torch.no_grad():  # with the clips, which are part of what was trained
            accuracy = (model(x[TRAIN:]).argmax(dim=1) == y[TRAIN:]).double().mean()
    print(f"test accuracy {accuracy:.3f}")
    return review(folder, saved(folder, data.dataset))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "backprop_clipping_run")))
