"""From a useless bound to a private run: the network and the run of docs/suggest.md.

    python examples/suggested_run.py export FOLDER    # network.onnx
    python examples/suggested_run.py train FOLDER     # by the recipe that `lipcert suggest` printed

The network is written as people write them; nothing in it was chosen for privacy. The mechanism is
what `lipcert suggest` printed for it without any data, so no example was looked at but by the run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.training import GradientClipping, make_private

TRAIN = 1437


def network() -> nn.Module:
    """A perceptron with layer normalisation, at its first weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10))


def train(folder: Path) -> float:
    """The accuracy on digits that the run did not see, at ε = 3."""
    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(digits.data).float()[order] / 16
    y = torch.from_numpy(digits.target)[order]
    loader = DataLoader(TensorDataset(x[:TRAIN], y[:TRAIN]), batch_size=256)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)  # as printed
    mechanism = GradientClipping(clip_norm=1, input_box=(0, 1))  # as printed
    with make_private(
        model, optimizer, loader, mechanism, delta=1e-05, target_epsilon=3, epochs=40,
        dataset_size=TRAIN, folder=folder / "run",
    ) as private:  # fmt: skip
        for images, labels in private.loader:
            optimizer.zero_grad()
            private.criterion(model(images), labels).backward()
            optimizer.step()
        print(private.ledger.summary)
    return (model(x[TRAIN:]).argmax(dim=1) == y[TRAIN:]).double().mean().item()


def main(verb: str, folder: Path) -> None:
    """Write the network, or train it."""
    folder.mkdir(parents=True, exist_ok=True)
    if verb == "train":
        print(f"test accuracy {train(folder):.3f}")
        return
    lipcert.export(network(), torch.zeros(1, 64), folder / "network.onnx")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "."))
