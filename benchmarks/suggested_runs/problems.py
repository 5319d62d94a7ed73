"""Problems: data that ship with scikit-learn or are generated, each with its network.

What enters: nothing from outside. What leaves: examples within a declared box, split into training
and test. Invariant: how an example becomes a vector depends on no example; where columns are scaled
it is by declared numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final, final

import torch
from torch import Tensor, nn

from benchmarks.suggested_runs.networks import M5, PatchVit, ResNet9, TabularMlp, TutorialCnn
from lipcert.gradient_stats.examples import Examples
from lipcert.settings.settings import Settings
from models.data import Split, digit_images

__all__ = ["DELTA", "PROBLEMS", "Problem"]

DELTA: Final = 1e-5
"""of every run"""
EXAMPLES: Final = 256
"""training examples whose gradients are measured, and that `suggest` is given"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A network and its data; box: what every entry of an input is declared to be within.

    batch_size, epochs: of every method that does not propose others.
    """

    name: str
    title: str
    network: Callable[[], nn.Module]
    split: Callable[[], Split]
    box: tuple[float, float]
    batch_size: int
    epochs: int

    def fresh(self, seed: int) -> nn.Module:
        """The network as a seed begins it."""
        torch.manual_seed(seed)
        return self.network()

    def examples(self) -> Examples:
        """The first training examples."""
        data = self.split()
        x, y = data.images[:EXAMPLES].numpy(), data.labels[:EXAMPLES].numpy()
        return Examples(x, y, "training examples")

    def planned(self, epsilon: float) -> Settings:
        """A private run of it, with no mechanism stated."""
        return Settings(
            input_box=self.box,
            target_epsilon=epsilon,
            delta=DELTA,
            dataset_size=self.size,
            batch_size=self.batch_size,
            epochs=self.epochs,
            sampling="poisson",
        )

    @property
    def size(self) -> int:
        """N, the number of training examples."""
        return len(self.split().labels)


@cache
def _digits() -> Split:
    return digit_images((1, 8, 8))


SAMPLES: Final = 256
WAVES: Final = ("sine", "square", "sawtooth", "rising", "falling", "beating")


@cache
def _waves(train: int = 2000, test: int = 1000) -> Split:
    """Six kinds of tones of random pitch, phase, loudness and noise, in [−1, 1]."""
    generator = torch.Generator().manual_seed(0)

    def drawn(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(train + test, 1, generator=generator)

    labels = torch.randint(len(WAVES), (train + test,), generator=generator)
    time = torch.linspace(0.0, 1.0, SAMPLES)
    pitch, phase = drawn(8.0, 24.0), drawn(0.0, 1.0)
    cycles = pitch * time + phase
    bend = 0.75 * pitch * time**2 / 2.0
    sine = torch.sin(2.0 * math.pi * cycles)
    kinds = torch.stack(
        [
            sine,
            sine.sign(),
            2.0 * (cycles % 1.0) - 1.0,
            torch.sin(2.0 * math.pi * (cycles + bend)),
            torch.sin(2.0 * math.pi * (cycles - bend)),
            sine * torch.sin(2.0 * math.pi * drawn(1.5, 3.0) * time + drawn(0.0, 6.28)),
        ]
    )
    waves = kinds[labels, torch.arange(train + test)] * drawn(0.3, 0.9)
    noise = drawn(0.0, 0.3) * torch.randn(waves.shape, generator=generator)
    x = (waves + noise).clamp(-1.0, 1.0)[:, None, :].contiguous()
    return Split(x[:train], labels[:train], x[train:], labels[train:])


COLUMNS: Final = 30
LIMIT: Final = 3.0
"""declared: standardised columns are clipped to it"""


@cache
def _table(train: int = 4000, test: int = 2000) -> Split:
    """Columns that depend on each other; the label on two of their products, a sum, and chance."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(train + test, 8, generator=generator)
    loadings = torch.randn(8, COLUMNS, generator=generator) / math.sqrt(8.0)
    columns = hidden @ loadings + 0.5 * torch.randn(train + test, COLUMNS, generator=generator)
    score = hidden[:, 0] + hidden[:, 1] * hidden[:, 2] + hidden[:, 3].abs() - 0.8
    chance = 0.3 * torch.randn(train + test, generator=generator)
    labels = (score + chance > 0.0).long()
    x = columns.clamp(-LIMIT, LIMIT)
    return Split(x[:train], labels[:train], x[train:], labels[train:])


PROBLEMS: Final[Mapping[str, Problem]] = MappingProxyType(
    {
        problem.name: problem
        for problem in (
            Problem("cnn", "tutorial CNN, BatchNorm", TutorialCnn, _digits, (0.0, 1.0), 128, 8),
            Problem("resnet", "ResNet-9, GroupNorm", ResNet9, _digits, (0.0, 1.0), 128, 8),
            Problem("m5", "M5 audio", M5, _waves, (-1.0, 1.0), 128, 8),
            Problem("mlp", "tabular MLP", TabularMlp, _table, (-LIMIT, LIMIT), 128, 8),
            Problem("vit", "small ViT", PatchVit, _digits, (0.0, 1.0), 128, 16),
        )
    }
)
