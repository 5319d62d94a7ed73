"""Clipless DP-SGD (Béthune et al., 2024): train, certify, check, audit, report.

    python examples/clipless_training.py [FOLDER]

Weights are projected onto the spectral ball after every step, so the network itself bounds the
gradient of one example; nothing is clipped but the gradient of the loss at the logits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from review_run import review, saved
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from lipcert.training import Clipless, Loss, make_private
from lipcert.training.layers import MaxMin

TRAIN = 1437


def main(folder: Path) -> int:
    """Train on digits at ε = 3, and review the run."""
    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
    x, y = torch.from_numpy(digits.data).float()[order], torch.from_numpy(digits.target)[order]
    x = nn.functional.normalize(x - x.mean(dim=1, keepdim=True))  # every image by itself
    data = DataLoader(TensorDataset(x[:TRAIN], y[:TRAIN]), batch_size=TRAIN)
    model = nn.Sequential(
        nn.Linear(64, 64, bias=False), MaxMin(), nn.Linear(64, 10, bias=False)
    )  # fmt: skip
    for weight in model.parameters():
        nn.init.orthogonal_(weight)
    averaged = AveragedModel(model)  # of what is public anyway
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.5)
    loss = Loss("cross-entropy", temperature=1 / 16)
    mechanism = Clipless(radius=1.0, loss=loss, loss_clip=6.4, input_norm=1.0)
    with make_private(
        model, optimizer, data, mechanism, target_epsilon=3.0, delta=1e-5,
        epochs=60, dataset_size=TRAIN, folder=folder, record_every=20,
    ) as private:  # fmt: skip
        for images, labels in private.loader:
            optimizer.zero_grad()
            private.criterion(model(images), labels).backward()
            optimizer.step()
            if private.releases > 30:
                averaged.update_parameters(model)
        print(private.ledger.summary)
    accuracy = (averaged(x[TRAIN:]).argmax(dim=1) == y[TRAIN:]).double().mean()
    print(f"test accuracy {accuracy:.3f}")
    return review(folder, saved(folder, data.dataset))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "clipless_run")))
