"""Examples that are single numbers, [N]: every verb answers, or refuses with a documented code."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert import load_model
from lipcert.training import (
    BackpropClipping,
    Clipless,
    GradientClipping,
    Loss,
    TrainingMechanism,
    make_private,
)
from tests.commands import lipcert
from tests.single_numbers import random_file
from tests.test_network_attacks import found_above, random_bounds

LOSSES: dict[str, dict[str, float]] = {
    "bce": {},
    "mse": {"label_norm": 1.0},
    "mae": {},
    "huber": {"label_norm": 1.0, "huber_delta": 0.5},
    "kr": {},
    "cosine": {"cosine_floor": 0.1},
}
"""losses of an output of any shape"""
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
"""a smaller seed is no smaller file"""


def options(parameters: dict[str, float]) -> list[str]:
    return [
        word for name, x in parameters.items() for word in (f"--{name.replace('_', '-')}", str(x))
    ]


def runs(folder: Path, *words: str, allowed: tuple[int, ...]) -> int:
    """The exit code, which is no internal error, and is explained where it is not 0."""
    result = lipcert(words, folder)
    assert result.exit_code in allowed, (words, result.exit_code, result.output[-800:])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "LC901" not in result.output
    return result.exit_code


def write_data(path: Path, shape: tuple[int, ...], labels: tuple[int, ...], loss: str) -> None:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, (6, *labels)).astype(np.float32)
    if loss in {"kr", "cosine"}:
        y = 2 * y - 1
    if loss == "cosine":
        y = y / np.linalg.norm(y.reshape(6, -1), axis=1).reshape(6, *[1] * len(labels))
    if loss in {"mse", "huber"}:
        y = y / max(1.0, np.sqrt(np.prod(labels)))
    np.savez(path, x=generator.random((6, *shape)).astype(np.float32), y=y)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("seed", "loss"), list(enumerate(sorted(LOSSES))))
def test_every_verb_answers_or_refuses(tmp_path: Path, seed: int, loss: str) -> None:
    folder = tmp_path
    (folder / "net.onnx").write_bytes(random_file(seed).SerializeToString())
    asked = ["--loss", loss, *options(LOSSES[loss]), "--input-box", "0", "1"]
    if runs(folder, "inspect", "net.onnx", allowed=(0, 3)):
        runs(folder, "analyze", "net.onnx", *asked, allowed=(3,))
        return
    if runs(folder, "analyze", "net.onnx", *asked, "--format", "json", allowed=(0, 2, 3)) == 2:
        return
    report = ["analyze", "net.onnx", *asked, "--format", "json", "-o", "found.json"]
    runs(folder, *report, allowed=(0, 3))
    runs(folder, "report", "found.json", "-o", "page.html", allowed=(0,))
    if runs(folder, "certify", "net.onnx", *asked, "-o", "net.json", allowed=(0, 3)) == 0:
        runs(folder, "check", "net.json", "--model", "net.onnx", allowed=(0, 3))
    graph = load_model(folder / "net.onnx", trusted=True).graph
    write_data(folder / "data.npz", graph.input_shape, graph.output_shape, loss)
    runs(folder, "audit", "net.onnx", *asked, "--data", "data.npz", allowed=(0, 3))
    runs(
        folder,
        "audit",
        "net.onnx",
        *asked,
        "--attack",
        "pga",
        "--attack-steps",
        "2",
        allowed=(0, 3),
    )


@settings(max_examples=6, phases=NO_SHRINKING)
@given(seed=st.integers(0, 10**6))
def test_bounds_withstand_an_attack(tmp_path_factory, seed: int) -> None:
    proto, folder = random_file(seed), tmp_path_factory.getbasetemp()
    for constrained in (False, True):
        found = random_bounds(proto, seed, folder, constrained=constrained)
        assert found is None or not found_above(proto, found, seed)


class Scorer(nn.Module):
    """A single logit, as most people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.score = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[examples]."""
        return self.score(torch.relu(self.hidden(x))).squeeze(-1)


BCE, MSE = Loss("bce"), Loss("mse", label_norm=1.0)
MECHANISMS: dict[str, TrainingMechanism] = {
    "clipless": Clipless(radius=1.0, bias_norm=1.0, loss=MSE, loss_clip=0.5, input_norm=1.0),
    "gradient clipping": GradientClipping(clip_norm=1.0, loss=BCE, input_norm=1.0),
    "backprop clipping": BackpropClipping(
        input_clip=1.0, cotangent_clip=0.1, loss=BCE, input_norm=1.0
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_single_logit_is_trained_privately_and_audited(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, folder = Scorer(), tmp_path / "run"
    x = nn.functional.normalize(torch.randn(24, 4))
    data = DataLoader(TensorDataset(x, (torch.rand(24) > 0.5).float()), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_private(
        model, optimizer, data, MECHANISMS[name],
        noise_multiplier=1.0, delta=1e-3, epochs=1, folder=folder, record_every=1,
        record_data=True,
    ) as private:  # fmt: skip
        for inputs, labels in private.loader:
            optimizer.zero_grad()
            private.criterion(model(inputs), labels).backward()
            optimizer.step()
    runs(folder, "check", "model.lipcert.json", "--model", "model.onnx", allowed=(3,))
    trace = ["--model", "model.onnx", "--trace", "trace", "--report", "json=audit.json"]
    runs(folder, "audit", "model.lipcert.json", *trace, allowed=(0,))
    runs(folder, "report", "audit.json", "-o", "audit.html", allowed=(0,))
