"""Recipes of `lipcert suggest` beside plain gradient clipping at the same ε, on small networks.

    python -m benchmarks.recipes_beside_clipping [--seeds 3] [network …]

Prints a table in Markdown. Every network is given to `lipcert.suggest` with public examples, which
rehearses what may be better than clipping; what comes back is trained with Adam on other examples,
beside gradient clipping at C = 1 of the network as it was written. The rate of each is chosen by a
run with a seed of its own.
"""

from __future__ import annotations

import argparse
import copy
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lipcert
from lipcert.training import GradientClipping, TrainingMechanism, make_private

RATES: Final = (0.003, 0.01, 0.03)
EPSILON: Final = 3.0
BATCH: Final = 128
EPOCHS: Final = 10
NODES: Final = 8
FEATURES: Final = 4


@final
@dataclass(frozen=True)
class Problem:
    """made: a fresh network. public, train, test: examples (x, y). box: of every input entry."""

    made: Callable[[], nn.Module]
    public: tuple[Tensor, Tensor]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    box: tuple[float, float] = (0.0, 1.0)

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

    def forward(self, x: Tensor) -> Tensor:
        """[examples, 64], both halves side by side."""
        both = torch.cat([self.left(x[:, :32]), self.right(x[:, 32:])], dim=1)
        return self.head(torch.relu(self.norm(both)))


def _digits(shape: tuple[int, ...], made: Callable[[], nn.Module]) -> Problem:
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.tensor(pixels[order] / 16.0, dtype=torch.float32).reshape(-1, *shape)
    y = torch.tensor(labels[order])
    ends = (slice(0, 300), slice(300, 1437), slice(1437, None))
    public, train, test = ((x[part], y[part]) for part in ends)
    return Problem(made, public, train, test)


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
    y = torch.tensor(labels)
    parts = (slice(0, 300), slice(300, 2300), slice(2300, None))
    public, train, test = ((x[part], y[part]) for part in parts)
    return Problem(GatedGraph, public, train, test)


PROBLEMS: Final[Mapping[str, Callable[[], Problem]]] = MappingProxyType(
    {
        "frozen features": lambda: _digits((1, 8, 8), FrozenFeatures),
        "two inputs side by side": lambda: _digits((64,), TwoSided),
        "gated graph": _graphs,
        "ConvNeXt": lambda: _digits((1, 8, 8), ConvNeXt),
    }
)


@final
@dataclass(frozen=True)
class Way:
    """How a network is trained."""

    module: nn.Module
    mechanism: TrainingMechanism
    settings: lipcert.Settings


def accuracy(problem: Problem, way: Way, rate: float, seed: int) -> float:
    """Of a private run, on the test examples."""
    module, settings = copy.deepcopy(way.module).train(), way.settings
    torch.manual_seed(seed)
    trained = [item for item in module.parameters() if item.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=rate)
    loader = DataLoader(TensorDataset(*problem.train), batch_size=settings.batch_size)
    names = ("target_epsilon", "delta", "epochs", "dataset_size", "sampling")
    run = {name: getattr(settings, name) for name in names}
    with make_private(
        module, optimizer, loader, way.mechanism, **run, seed=seed, progress=False
    ) as private:
        for x, y in private.loader:
            private.step(x, y)
    with torch.no_grad():
        found = module.eval()(problem.test[0]).argmax(1)
    return float((found == problem.test[1]).float().mean())


def compared(name: str, seeds: int) -> str:
    """A row of the table."""
    problem = PROBLEMS[name]()
    torch.manual_seed(0)
    module = problem.made()
    begun = time.process_time()
    found = lipcert.suggest(
        module, problem.train[0][:1], problem.settings, public=problem.public, progress=False
    )
    seconds = time.process_time() - begun
    plain = GradientClipping(clip_norm=1.0, input_box=problem.box)
    ways = {
        "clipping": Way(module, plain, problem.settings),
        "recipe": Way(found.module, found.mechanism(), found.settings),
    }
    reached: dict[str, tuple[float, float]] = {}
    for name_of_way, way in ways.items():
        tried = {rate: accuracy(problem, way, rate, 99) for rate in RATES}
        rate = max(tried, key=tried.__getitem__)
        runs = [accuracy(problem, way, rate, seed) for seed in range(seeds)]
        reached[name_of_way] = 100.0 * float(np.mean(runs)), 100.0 * float(np.std(runs, ddof=1))
    difference = reached["recipe"][0] - reached["clipping"][0]
    changes = "; ".join(change.change for change in found.recipe.changes)
    shown = " | ".join(f"{mean:.1f} ± {spread:.1f}" for mean, spread in reached.values())
    rehearsal = found.suggestions.rehearsal
    runs_of = [] if rehearsal is None else rehearsal.runs
    told = ", ".join(
        f"{run.mechanism} " + ("–" if run.accuracy is None else f"{100.0 * run.accuracy:.0f}")
        for run in runs_of
    )
    return f"| {name} | {shown} | {difference:+.1f} | {changes} | {told or '–'} | {seconds:.0f} s |"


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("networks", nargs="*", default=list(PROBLEMS))
    words = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| network | clipping, C = 1 | recipe | points | the recipe | rehearsed | suggest |")
    print("|---|---:|---:|---:|---|---|---:|")
    for name in words.networks:
        print(compared(name, words.seeds), flush=True)


if __name__ == "__main__":
    main()
