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
from review_run import review
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert.training import Loss, WeightClipping, make_private

TRAIN = 455


def main(folder: Path) -> int:
    """Train on breast cancer at the ε of the paper, and review the run."""
    cancer = load_breast_cancer()
    order = torch.randperm(len(cancer.data), generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(cancer.data).float()[order].clamp(min=1e-3).log()
    x = nn.functional.normalize(x - x.mean(dim=1, keepdim=True))  # every patient alone
    y = torch.from_numpy(cancer.target).double()[order, None]
    data = DataLoader(TensorDataset(x[:TRAIN], y[:TRAIN]), batch_size=64)
    model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    mechanism = WeightClipping(radius=3.0, bias_norm=1.0, loss=Loss("bce"), input_norm=1.0)
    with make_private(
        model, optimizer, data, mechanism,
        target_epsilon=1.672, delta=1e-3, epochs=20, folder=folder, record_every=20,
    ) as private:  # fmt: skip
        for patients, labels in private.loader:
            optimizer.zero_grad()
            private.criterion(model(patients), labels).backward()
            optimizer.step()
        print(private.ledger.summary)
    right = (model(x[TRAIN:]) > 0.0) == (y[TRAIN:] > 0.5)
    print(f"test accuracy {right.double().mean():.3f}")
    return review(folder)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "weight_clipping_run")))
