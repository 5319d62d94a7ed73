"""Private fine-tuning: features from public digits, a head trained privately, audited.

    python examples/frozen_features.py [FOLDER]

A network with BatchNorm learns from one half of the digits, which is public here. Its features are
frozen in evaluation mode, and a new head is trained on the other half by gradient clipping.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from review_run import review, saved
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert.training import GradientClipping, make_private

PUBLIC, TRAIN = 898, 700


def fit(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Ten epochs without privacy, in the modes that parts are in."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for images, labels in list(DataLoader(TensorDataset(x, y), batch_size=64)) * 10:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def main(folder: Path) -> int:
    """Train the head at ε = 3 beside one without privacy, and review the run."""
    torch.manual_seed(0)
    digits, order = load_digits(), torch.randperm(1797)
    x = torch.from_numpy(digits.images / 16).float()[order].unsqueeze(1)
    y = torch.from_numpy(digits.target)[order]
    features = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 2), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    fit(nn.Sequential(features, nn.Linear(128, 10)), x[:PUBLIC], y[:PUBLIC])
    features.requires_grad_(False).eval()
    plain, model = (nn.Sequential(features, nn.Linear(128, 10)) for _ in range(2))
    own = slice(PUBLIC, PUBLIC + TRAIN)
    fit(plain, x[own], y[own])
    data = DataLoader(TensorDataset(x[own], y[own]), batch_size=TRAIN)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=2.0, momentum=0.5)
    mechanism = GradientClipping(clip_norm=1.0, input_box=(0, 1))
    with make_private(
        model, optimizer, data, mechanism, target_epsilon=3.0, delta=1e-5,
        epochs=40, dataset_size=TRAIN, folder=folder, record_every=10,
    ) as private:  # fmt: skip
        for images, labels in private.loader:
            model.train()  # the features stay in evaluation mode
            private.step(images, labels)
        print(private.ledger.summary)
    found = [
        (net(x[own.stop :]).argmax(1) == y[own.stop :]).double().mean() for net in (model, plain)
    ]
    print("test accuracy {:.3f}, without privacy {:.3f}".format(*found))
    return review(folder, saved(folder, data.dataset))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "frozen_run")))
