"""Lip-DP-SGD (Barczewski and Ramon, 2024): train, certify, check, audit, report.

    python examples/weight_clipping_training.py [FOLDER]

Weights longer than their radius are scaled down; every step is noised by the bounds at its own
weights, which are public because they were noised. Batches are Poisson samples, sums are divided by
a constant, and all layers together are one release.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from review_run import review, saved
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert.training import Loss, WeightClipping, make_private

TRAIN = 1437


def main(folder: Path) -> int:
    """Train on digits at ε = 3, and review the run."""
    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
    x, y = torch.from_numpy(digits.data).float()[order], torch.from_numpy(digits.target)[order]
    x = nn.functional.normalize(x - x.mean(dim=1, keepdim=True))  # every image by itself
    data = DataLoader(TensorDataset(x[:TRAIN], y[:TRAIN]), batch_size=512)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    mechanism = WeightClipping(
        radius=2.0,
        bias_norm=0.5,
        loss=Loss("cross-entropy", temperature=1 / 4),
        loss_clip=1.0,
        input_norm=1.0,
    )
    with make_private(
        model, optimizer, data, mechanism, target_epsilon=3.0, delta=1e-5,
        epochs=20, dataset_size=TRAIN, folder=folder, record_every=20,
    ) as private:  # fmt: skip
        for images, labels in private.loader:
            optimizer.zero_grad()
            private.criterion(model(images), labels).backward()
            optimizer.step()
        print(private.ledger.summary)
    accuracy = (model(x[TRAIN:]).argmax(dim=1) == y[TRAIN:]).double().mean()
    print(f"test accuracy {accuracy:.3f}")
    return review(folder, saved(folder, data.dataset))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "weight_clipping_run")))
