"""Small private runs: a network, data inside its domain, and the loop of the documentation."""

import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from lipcert.training import Clipless, Loss, Private, TrainingMechanism, make_private
from tests.commands import lipcert

EXAMPLES, BATCH, STEPS, DELTA = 60, 15, 6, 1e-5
FEATURES, CLASSES = 6, 3


class Small(nn.Module):
    """6 → 5 → 3, ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(x).relu())
        return logits


def data(seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(EXAMPLES, FEATURES, generator=generator)
    x = x / x.norm(dim=1, keepdim=True)
    return TensorDataset(x, torch.randint(CLASSES, (EXAMPLES,), generator=generator))


def clipless(**changes: Any) -> Clipless:
    given: dict[str, Any] = {
        "radius": 1.0,
        "bias_norm": 1.0,
        "loss": Loss("cross-entropy", temperature=4.0),
        "input_norm": 1.0,
    }
    return Clipless(**(given | changes))


def private_run(
    folder=None,
    mechanism: TrainingMechanism | None = None,
    *,
    network=Small,
    optimizer=SGD,
    examples: TensorDataset | None = None,
    batch: int = BATCH,
    workers: int = 0,
    **changes: Any,
) -> Private:
    torch.manual_seed(0)
    module = network()
    given: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "delta": DELTA,
        "steps": STEPS,
        "dataset_size": EXAMPLES,
        "folder": folder,
        "record_every": 1,
        "record_data": True,
        "seed": 7,
    }
    return make_private(
        module,
        optimizer(module.parameters(), lr=0.5),
        DataLoader(
            examples or data(),
            batch_size=batch,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        ),
        mechanism or clipless(),
        **(given | changes),
    )


def still(parameters, lr: float) -> SGD:
    """Leaves the weights as they are."""
    return SGD(parameters, 0.0 * lr)


def first(private: Private) -> tuple[Tensor, Tensor]:
    """The batch that is drawn next."""
    x, y = next(iter(private.loader))
    return x, y


def train(private: Private) -> None:
    """The loop of the documentation."""
    for x, y in private.loader:
        private.optimizer.zero_grad()
        private.criterion(private.model(x), y).backward()
        private.optimizer.step()


def audited(folder, verdict: str = "pass") -> Any:
    """The report of an audit of a run, all claims of which the checker proves."""
    target = [str(folder / "model.lipcert.json"), "--model", str(folder / "model.onnx")]
    assert lipcert(["check", *target]).output.startswith("Conditional: all claims")
    done = lipcert(["audit", *target, "--trace", str(folder / "trace"), "--format", "json"])
    found = json.loads(done.stdout)
    assert found["verdict"] == verdict, done.output
    return found


def lines(private: Private, script: str, **further: Any) -> None:
    """Do lines of a training script, in which the objects of a run have their names."""
    names: dict[str, Any] = {"torch": torch, "nn": nn, "private": private, "model": private.model}
    names |= {"criterion": private.criterion, "optimizer": private.optimizer}
    exec(script, {**names, "loader": private.loader, **further})


DRAWN = "x, y = next(iter(loader)); half = len(x) // 2\n"
FORWARD = DRAWN + "optimizer.zero_grad(); loss = criterion(model(x), y)\n"
BACKWARD = "loss.backward()\n"
STEP = "optimizer.step()\n"
