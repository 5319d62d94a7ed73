"""Recipes of `lipcert suggest` beside plain gradient clipping at the same ε, on small networks.

    python -m benchmarks.recipes_beside_clipping [--seeds 3] [network …]
    python -m benchmarks.recipes_beside_clipping --samplings --seeds 10 "frozen features" ConvNeXt

Prints a table in Markdown. Every network is given to `lipcert.suggest` with public examples, which
rehearses what may be better than clipping; what comes back is trained with Adam on other examples,
beside gradient clipping at C = 1 of the network as it was written and the run as it was planned.
The rate of each is chosen by a run with a seed of its own. The run of the recipe is then made once
more by the line that is printed, its certificate is checked, and its recording audited.

With --samplings: gradient clipping alone, by how batches are drawn. Neighbours are zero-out, the
relation that all three samplings have an ε for.
"""

from __future__ import annotations

import argparse
import copy
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, final

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert import training
from lipcert.core.check import Choices, check
from lipcert.core.verdict import Verdict
from lipcert.privacy.accounting import epsilon, noise_for_epsilon
from lipcert.privacy.plan import TrainingPlan
from lipcert.settings.settings import values_of
from lipcert.training import GradientClipping, TrainingMechanism, make_private

RATES: Final = (0.003, 0.01, 0.03)
EPSILON: Final = 3.0
BATCH: Final = 128
BUDGET: Final = 1200.0
"""seconds: nothing is left out where other work slows the machine"""
EPOCHS: Final = 10
NODES: Final = 8
FEATURES: Final = 4


Examples = tuple[tuple[Tensor, ...], Tensor]
"""inputs of the network, and labels"""


@final
@dataclass(frozen=True)
class Problem:
    """made: a fresh network. public, train, test: examples (x, y). box: of every input entry."""

    made: Callable[[], nn.Module]
    public: Examples
    train: Examples
    test: Examples
    box: Mapping[str, tuple[float, float]] | tuple[float, float] = (0.0, 1.0)

    @property
    def settings(self) -> lipcert.Settings:
        """The run that is planned."""
        return lipcert.Settings(
            input_box=self.box, dataset_size=len(self.train[1]), batch_size=BATCH,
            epochs=EPOCHS, sampling="poisson", target_epsilon=EPSILON, delta=1e-5,
        )  # fmt: skip


class Block(nn.Module):
    """Of ConvNeXt: depthwise convolution, normalisation over channels, GELU, layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act, self.scale = nn.GELU(), nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[examples, channels, height, width]."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(self.act(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Two blocks on patches of 2×2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 2, stride=2)
        self.blocks = nn.Sequential(Block(16), Block(16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[examples, 1, 8, 8]."""
        return self.head(self.norm(self.blocks(self.stem(x)).mean((2, 3))))


class GatedGraph(nn.Module):
    """A gated graph network: two rounds of messages, each with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.message = nn.Linear(FEATURES, 16), nn.Linear(16, 16)
        self.update, self.candidate = nn.Linear(32, 16), nn.Linear(32, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[examples, nodes, features and neighbours]."""
        near, h = x[:, :, FEATURES:], torch.tanh(self.enter(x[:, :, :FEATURES]))
        for _ in range(2):
            both = torch.cat([h, near @ self.message(h)], dim=2)
            gate = torch.sigmoid(self.update(both))
            h = (1.0 - gate) * h + gate * torch.tanh(self.candidate(both))
        return self.head(h.mean(1))


class FrozenFeatures(nn.Module):
    """Convolutions that stay as they are, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
            nn.AvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.features.requires_grad_(requires_grad=False)
        self.hidden, self.head = nn.Linear(256, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[examples, 1, 8, 8]."""
        return self.head(torch.relu(self.hidden(self.features(x))))


class TwoSided(nn.Module):
    """The left and the right half of an image, each through layers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(32, 24), nn.Linear(32, 24)
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, 10)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """[examples, 32] each."""
        both = torch.cat([self.left(left), self.right(right)], dim=1)
        return self.head(torch.relu(self.norm(both)))


def _digits(shape: tuple[int, ...], made: Callable[[], nn.Module]) -> Problem:
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.tensor(pixels[order] / 16.0, dtype=torch.float32).reshape(-1, *shape)
    return Problem(made, *_parts((x,), torch.tensor(labels[order]), (300, 1437)))


def _halves() -> Problem:
    """The left and the right half of each digit, as two inputs."""
    whole = _digits((8, 8), TwoSided)
    public, train, test = (
        ((x[:, :, :4].flatten(1), x[:, :, 4:].flatten(1)), y)
        for (x,), y in (whole.public, whole.train, whole.test)
    )
    return replace(
        whole, public=public, train=train, test=test,
        box={"left": (0.0, 1.0), "right": (0.0, 1.0)},
    )  # fmt: skip


def _parts(x: tuple[Tensor, ...], y: Tensor, ends: tuple[int, int]) -> Iterator[Examples]:
    """Public examples, those to train on, and those to test with."""
    for part in (slice(0, ends[0]), slice(*ends), slice(ends[1], None)):
        yield tuple(item[part] for item in x), y[part]


def _graphs() -> Problem:
    """Rings, stars and two cliques with some edges exchanged; features are of chance and degree."""
    random = np.random.default_rng(0)
    count, labels = 3300, random.integers(3, size=3300)
    near = np.zeros((count, NODES, NODES))
    for place, label in enumerate(labels):
        graph = near[place]
        for node in range(NODES):
            half = NODES // 2
            others = {
                0: [(node + 1) % NODES],
                1: [0] if node else [],
                2: [other for other in range(NODES) if (other < half) == (node < half) != node],
            }[int(label)]
            graph[node, others] = graph[others, node] = 1.0
        for _ in range(3):
            a, b = random.choice(NODES, 2, replace=False)
            graph[a, b] = graph[b, a] = 1.0 - graph[a, b]
        graph /= np.maximum(graph.sum(axis=1, keepdims=True), 1.0)
    features = random.random((count, NODES, FEATURES))
    features[:, :, 0] = (near > 0.0).sum(axis=2) / NODES
    x = torch.tensor(np.concatenate([features, near], axis=2), dtype=torch.float32)
    return Problem(GatedGraph, *_parts((x,), torch.tensor(labels), (300, 2300)))


PROBLEMS: Final[Mapping[str, Callable[[], Problem]]] = MappingProxyType(
    {
        "frozen features": lambda: _digits((1, 8, 8), FrozenFeatures),
        "two inputs": _halves,
        "gated graph": _graphs,
        "ConvNeXt": lambda: _digits((1, 8, 8), ConvNeXt),
    }
)


@final
@dataclass(frozen=True)
class Way:
    """How a network is trained. file: of the network, exported once for all runs."""

    module: nn.Module
    mechanism: TrainingMechanism
    settings: lipcert.Settings
    file: Path


def accuracy(
    problem: Problem, way: Way, rate: float, seed: int, folder: Path | None = None
) -> float:
    """Of a private run, on the test examples. folder: of its certificate and recording."""
    module, settings = copy.deepcopy(way.module).train(), way.settings
    torch.manual_seed(seed)
    trained = [item for item in module.parameters() if item.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=rate)
    x, y = problem.train
    loader = DataLoader(TensorDataset(*x, y), batch_size=settings.batch_size)
    names = ("target_epsilon", "delta", "epochs", "dataset_size", "sampling")
    run = {name: getattr(settings, name) for name in names}
    with make_private(
        module,
        optimizer,
        loader,
        way.mechanism,
        **run,
        seed=seed,
        progress=False,
        folder=folder,
        model_file=way.file,
    ) as private:
        for *inputs, labels in private.loader:
            optimizer.zero_grad()
            private.criterion(private.model(*inputs), labels).backward()
            optimizer.step()
    x, y = problem.test
    with torch.no_grad():
        found = module.eval()(*x).argmax(1)
    return float((found == y).float().mean())


def _given(inputs: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return inputs[0] if len(inputs) == 1 else inputs


def audited(problem: Problem, way: Way, rate: float) -> str:
    """The verdict on the recording of one more run, whose certificate is checked first."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "run"
        accuracy(problem, way, rate, 0, folder)
        certificate, model = folder / "model.lipcert.json", folder / "model.onnx"
        checked = check(certificate.read_bytes(), model, Choices()).verdict
        if checked is Verdict.INVALID:
            return checked.value
        report = lipcert.audit(
            str(certificate),
            trace=str(folder / "trace"),
            data=TensorDataset(*problem.train[0], problem.train[1]),
        )
    return report.verdict.value


@final
@dataclass(frozen=True)
class Reached:
    """Accuracies in per cent: mean and deviation over the seeds, at the best rate."""

    rate: float
    mean: float
    spread: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.spread:.1f}"


def _reached(problem: Problem, way: Way, seeds: int) -> Reached:
    tried = {rate: accuracy(problem, way, rate, 99) for rate in RATES}
    rate = max(tried, key=tried.__getitem__)
    runs = [accuracy(problem, way, rate, seed) for seed in range(seeds)]
    return Reached(rate, 100.0 * float(np.mean(runs)), 100.0 * float(np.std(runs, ddof=1)))


def by_sampling(name: str, seeds: int, folder: Path) -> Iterator[str]:
    """Rows of the table of --samplings."""
    problem = PROBLEMS[name]()
    torch.manual_seed(0)
    module = problem.made()
    example = _given(tuple(item[:1] for item in problem.train[0]))
    file = lipcert.export(module.eval(), example, folder / "net.onnx")
    clipping = GradientClipping(clip_norm=1.0, input_box=problem.box, neighbours="zero-out")
    least: float | None = None
    for sampling in ("poisson", "balls-in-bins", "shuffle"):
        settings = replace(problem.settings, sampling=sampling, neighbours="zero-out")
        plan = TrainingPlan.described(values_of(settings))
        sigma = noise_for_epsilon(plan, EPSILON).noise_multiplier
        least = least or sigma
        reached = _reached(problem, Way(module, clipping, settings, file), seeds)
        row = name, sampling, f"{sigma:.3g}", f"{epsilon(plan, least):.3g}", str(reached)
        yield f"| {' | '.join(row)} |"


def compared(name: str, seeds: int, folder: Path) -> str:
    """A row of the table. folder: for files."""
    problem = PROBLEMS[name]()
    torch.manual_seed(0)
    module = problem.made()
    begun = time.process_time()
    example = _given(tuple(item[:1] for item in problem.train[0]))
    inputs, labels = problem.public
    found = lipcert.suggest(
        module,
        example,
        problem.settings,
        public=(_given(inputs), labels),
        budget=BUDGET,
        progress=False,
    )
    seconds = time.process_time() - begun
    plain = GradientClipping(clip_norm=1.0, input_box=problem.box)
    printed = eval(found.recipe.code, vars(training))
    files = [lipcert.export(net.eval(), example, folder / f"{number}.onnx")
             for number, net in enumerate((module, found.module))]  # fmt: skip
    ways = {
        "clipping": Way(module, plain, problem.settings, files[0]),
        "recipe": Way(found.module, printed, found.settings, files[1]),
    }
    reached = {name_of_way: _reached(problem, way, seeds) for name_of_way, way in ways.items()}
    verdict = audited(problem, ways["recipe"], reached["recipe"].rate)
    difference = reached["recipe"].mean - reached["clipping"].mean
    changes = "; ".join(change.change for change in found.recipe.changes)
    shown = " | ".join(map(str, reached.values()))
    rehearsal = found.suggestions.rehearsal
    runs_of = [] if rehearsal is None else rehearsal.runs
    told = ", ".join(
        f"{run.mechanism} " + ("–" if run.accuracy is None else f"{100.0 * run.accuracy:.0f}")
        for run in runs_of
    )
    row = name, shown, f"{difference:+.1f}", changes, told or "–", f"{seconds:.0f} s", verdict
    return f"| {' | '.join(row)} |"


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("networks", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--samplings", action="store_true")
    words = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if words.samplings:
        print("| network | `sampling` | σ | ε at the σ of Poisson batches | accuracy |")
        print("|---|---|---:|---:|---:|")
        for name in words.networks:
            with tempfile.TemporaryDirectory() as folder:
                for row in by_sampling(name, words.seeds, Path(folder)):
                    print(row, flush=True)
        return
    head = "network", "clipping, C = 1", "recipe", "points", "the recipe", "rehearsed", "suggest"
    print(f"| {' | '.join(head)} | audit |")
    print("|---|---:|---:|---:|---|---|---:|---|")
    for name in words.networks:
        with tempfile.TemporaryDirectory() as folder:
            print(compared(name, words.seeds, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
