"""DP-SGD with the weight decay inside the clip (Guo, 2024): train, certify, check, audit, report.

    python examples/decay_inside_the_clip.py [FOLDER]

What is clipped is ∇ℓ + λθ of every example, by exact norms and without any per-example gradient.
With the decay outside, training sticks at the radius over λ; inside, it finds the ridge solution.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from review_run import review, saved
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert.training import GradientClipping, Loss, make_private

EXAMPLES, TRUTH, DECAY, RADIUS = 4000, 3.8, 0.5, 1.0


def main(folder: Path) -> int:
    """Train one weight on y = 3.8·x, |x| = 1, and review the run."""
    x = torch.ones(EXAMPLES, 1) - 2.0 * (torch.arange(EXAMPLES) % 2)[:, None]
    data = DataLoader(TensorDataset(x, TRUTH * x), batch_size=EXAMPLES)
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    loss = Loss("mse", half=True, label_norm=TRUTH)
    mechanism = GradientClipping(
        clip_norm=RADIUS, decay="inside", weight_decay=DECAY, loss=loss, input_norm=1.0
    )
    with make_private(
        model, optimizer, data, mechanism, target_epsilon=3.0, delta=1e-5,
        epochs=60, dataset_size=EXAMPLES, folder=folder, record_every=20,
    ) as private:  # fmt: skip
        for inputs, targets in private.loader:
            optimizer.zero_grad()
            private.criterion(model(inputs), targets).backward()
            optimizer.step()
        print(private.ledger.summary)
    print(f"weight {float(model.weight.detach()):.2f}; ridge {TRUTH / (1.0 + DECAY):.2f}, "
          f"decay outside the clip {RADIUS / DECAY:.2f}")  # fmt: skip
    return review(folder, saved(folder, data.dataset))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "decay_run")))
