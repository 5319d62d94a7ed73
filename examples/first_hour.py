"""The first hour with a network of your own: from an nn.Module to an audited private run.

    python examples/first_hour.py digits|text|table FOLDER

Three networks as people write them: a convolutional one with batch normalisation (digits of
scikit-learn), a classifier of token sequences with an embedding and attention (sequences made
here), and a perceptron on standardised columns (breast cancer data of scikit-learn). Each is
analysed, prepared as `lipcert.suggest` says, trained under differential privacy, checked and
audited; behind every step stand the seconds of processor time that it took.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.training import make_private


class Digits(nn.Module):
    """Two convolutions with batch normalisation, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.norm1(self.conv1(x)).relu(), 2)
        x = functional.max_pool2d(self.norm2(self.conv2(x)).relu(), 2)
        return self.head(x.flatten(1))


class Text(nn.Module):
    """Embedded tokens with positions, one layer of attention, and the mean of what it says."""

    def __init__(self, words: int = 200, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.head = nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids) + self.places
        q, k, v = self.qkv(self.norm(h)).unsqueeze(1).chunk(3, -1)
        h = h + self.out(functional.scaled_dot_product_attention(q, k, v).squeeze(1))
        return self.head(h.mean(1))


class Table(nn.Sequential):
    """A perceptron of two hidden layers."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2)
        )


@dataclass(frozen=True)
class Problem:
    """A network, its examples, and what is known of them without looking at any of them."""

    module: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    domain: dict[str, object]
    epochs: int


def digits() -> Problem:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16
    return Problem(Digits, x, torch.from_numpy(labels), {"input_box": (0.0, 1.0)}, 40)


def text() -> Problem:
    """Sequences of 16 of 200 words, 4 topics; two of five words belong to the topic."""
    draw = torch.Generator().manual_seed(1)
    y = torch.randint(4, (5000,), generator=draw)
    any_word = torch.randint(200, (5000, 16), generator=draw)
    of_topic = y[:, None] * 7 + torch.randint(5, (5000, 16), generator=draw)
    is_topic = torch.rand(5000, 16, generator=draw) < 0.4
    return Problem(Text, torch.where(is_topic, of_topic, any_word), y, {}, 8)


def table() -> Problem:
    """Standardised columns, held to [-3, 3]."""
    from sklearn.datasets import load_breast_cancer

    columns, y = load_breast_cancer(return_X_y=True)
    x = torch.from_numpy((columns - columns.mean(0)) / columns.std(0)).float().clamp(-3, 3)
    return Problem(Table, x, torch.from_numpy(y), {"input_box": (-3.0, 3.0)}, 40)


@contextmanager
def timed(step: str) -> Iterator[None]:
    """Say at the end how many seconds of processor time it took, in this process and below it."""
    before = os.times()[:4]
    yield
    seconds = sum(os.times()[:4]) - sum(before)
    print(f"    [{step}: {seconds:.1f} s of processor time]", flush=True)


def main(problem: Problem, folder: Path) -> None:
    torch.manual_seed(0)
    order = torch.randperm(len(problem.x))
    x, y = problem.x[order], problem.y[order]
    kept = len(x) * 4 // 5
    settings = lipcert.Settings(
        **problem.domain, loss="cross-entropy", dataset_size=kept, batch_size=128,
        epochs=problem.epochs, sampling="poisson", target_epsilon=8.0, delta=1e-5,
    )  # fmt: skip

    module = problem.module()
    with timed("analyze"):
        analysis = lipcert.analyze(module, x[:1], settings)
        print(analysis.usefulness.sentence)
    with timed("suggest"):
        found = lipcert.suggest(module, x[:1], settings, budget=60.0)
        print(found)

    model, size = found.module, found.settings.batch_size
    optimizer = found.optimizer()
    examples = TensorDataset(x[:kept], y[:kept])
    with timed("train"):
        with make_private(
            model, optimizer, DataLoader(examples, batch_size=size), found.mechanism(),
            folder=folder, **found.run(),
        ) as private:  # fmt: skip
            for xs, ys in private.loader:
                optimizer.zero_grad()
                private.criterion(model(xs), ys).backward()
                optimizer.step()
        right = (model.eval()(x[kept:]).argmax(1) == y[kept:]).double().mean()
        print(private.ledger.summary)
        print(f"right about {right:.1%} of {len(x) - kept} examples that it did not see")

    certificate = folder / "model.lipcert.json"
    with timed("check"):
        words = ["check", str(certificate), "--model", str(folder / "model.onnx")]
        checker = [sys.executable, "-m", "lipcert", *words]
        done = subprocess.run(checker, capture_output=True, text=True, check=False)
        print(done.stdout.splitlines()[0])
    with timed("audit"):
        report = lipcert.audit(certificate, model=folder / "model.onnx", trace=folder / "trace",
                               data=(x[:kept], y[:kept]))  # fmt: skip
        print(f"{report.verdict.value}: {report.examples} gradients of single examples, and "
              f"{len(report.checks)} checks of the recorded run")  # fmt: skip


if __name__ == "__main__":
    main({"digits": digits, "text": text, "table": table}[sys.argv[1]](), Path(sys.argv[2]))
