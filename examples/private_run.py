"""A private run of digits, which can be done again on other data: `train` is what a twin run calls.

    python examples/private_run.py
    lipcert audit run/model.lipcert.json --trace run/trace --data data.npz \\
        --twin examples/private_run.py:train --max-epsilon 3

Whatever `train` returns is published. Numbers in it are public constants: none is computed from the
examples, not even how many there are.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert.training import GradientClipping, make_private

N = 1000


def train(data: tuple[Tensor, Tensor]) -> nn.Module:
    """Train on (x, y), and return the model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with make_private(
        model, optimizer, DataLoader(TensorDataset(*data), batch_size=100),
        GradientClipping(clip_norm=1.0), target_epsilon=3.0, delta=1e-5, epochs=4,
        dataset_size=N, sampling="balls-in-bins", folder="run", record_every=4,
    ) as private:  # fmt: skip
        for x, y in private.loader:
            private.step(x, y)
    print(private.ledger.summary)
    return model


if __name__ == "__main__":
    digits = load_digits()
    x = (digits.data / 16.0).astype(np.float32)
    np.savez("data.npz", x=x[:N], y=digits.target[:N])
    trained = train((torch.from_numpy(x[:N]), torch.from_numpy(digits.target[:N])))
    held_out = torch.from_numpy(x[N:]), torch.from_numpy(digits.target[N:])
    hits = (trained(held_out[0]).argmax(1) == held_out[1]).float().mean()
    print(f"accuracy {float(hits):.2f} on {len(x) - N} other digits")
