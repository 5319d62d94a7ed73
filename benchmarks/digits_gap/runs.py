"""Runs: a row, trained once or over seeds.

What enters: a row and a seed. What leaves: the trained network, what the ledger says was spent, and
accuracies on the test images. Invariant: no private row spends more than `EPSILON`.

Seeds make noise and batches reproducible, as measurements must be and private runs must not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.digits_gap.inputs import Inputs
from benchmarks.digits_gap.rows import Network, Row
from benchmarks.reproductions.sample import Sample
from lipcert.privacy.accounting import noise_for_epsilon
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.training import Loss, TrainingMechanism, make_private
from lipcert.training.exporting import export
from models.data import Split, digit_images

__all__ = ["DELTA", "EPSILON", "Measured", "Spent", "Trained", "accuracy", "measured", "trained"]

EPSILON: Final = 3.0
DELTA: Final = 1e-5


@final
@dataclass(frozen=True, slots=True)
class Spent:
    """By a private run. noise_multiplier: of each release, all groups together."""

    noise_multiplier: float
    epsilon: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A network in evaluation mode; spent: None where it was trained without privacy."""

    network: nn.Module
    spent: Spent | None


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """A row over seeds. accuracy, error: mean and standard error, to the digits of the table."""

    accuracy: float
    error: float
    seeds: int
    spent: Spent | None


def measured(row: Row, seeds: Iterable[int]) -> Measured:
    """One run per seed, of at least two."""
    runs = [trained(row, seed) for seed in seeds]
    found = Sample.of([accuracy(row.inputs, run.network) for run in runs])
    return Measured(round(found.mean, 4), round(found.error, 4), found.count, runs[0].spent)


def trained(row: Row, seed: int) -> Trained:
    """One run; a seed fixes the initial weights, the batches and the noise."""
    torch.manual_seed(seed)
    network = row.network.built(row.inputs.size)
    if isinstance(row.mechanism, Loss):
        run, spent = _without_privacy(row, row.mechanism, network), None
    else:
        run, spent = _privately(row, row.mechanism, network, seed)
    return Trained(run.eval(), spent)


@torch.no_grad()
def accuracy(inputs: Inputs, network: nn.Module) -> float:
    """Share of the test images that are classified correctly."""
    split = _split()
    return float((network(_vectors(inputs)[1]).argmax(dim=1) == split.test_labels).double().mean())


def _privately(
    row: Row, mechanism: TrainingMechanism, network: nn.Module, seed: int
) -> tuple[nn.Module, Spent]:
    mean = _Mean(network, row.averaged)  # a copy made later would copy the hooks of the run
    with make_private(
        network,
        _optimizer(row, network),
        _loader(row),
        mechanism,
        delta=DELTA,
        noise_multiplier=_multiplier(row.batch_size, row.epochs),
        epochs=row.epochs,
        dataset_size=len(_split().labels),
        model_file=_model_file(row.network, row.inputs.size),
        seed=seed,
    ) as private:
        steps = len(private.loader)
        for step, (x, y) in enumerate(private.loader):
            private.step(x, y)
            mean.update(network, step, steps)
        spent = Spent(private.noise_multiplier, private.epsilon)
    if not spent.epsilon <= EPSILON:
        raise RuntimeError(f"{row.name} spent ε = {spent.epsilon}, not {EPSILON}")
    return mean.of(network), spent


def _without_privacy(row: Row, loss: Loss, network: nn.Module) -> nn.Module:
    """The same loop on shuffled batches, with nothing clipped, held or added."""
    mean, optimizer, loader = _Mean(network, row.averaged), _optimizer(row, network), _loader(row)
    steps = row.epochs * len(loader)
    for step, (x, y) in enumerate(batch for _ in range(row.epochs) for batch in loader):
        optimizer.zero_grad()
        cross_entropy(network(x) / (loss.temperature or 1.0), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mean.update(network, step, steps)
    return mean.of(network)


def _optimizer(row: Row, network: nn.Module) -> SGD:
    return SGD(network.parameters(), lr=row.rate, momentum=row.momentum)


def _loader(row: Row) -> DataLoader[tuple[Tensor, ...]]:
    examples = TensorDataset(_vectors(row.inputs)[0], _split().labels)
    return DataLoader(examples, batch_size=row.batch_size, shuffle=True)


@final
class _Mean:
    """Mean of the last iterates; what comes after the noise costs no privacy."""

    def __init__(self, network: nn.Module, share: float) -> None:
        self._averaged, self._share = AveragedModel(network), share

    def update(self, network: nn.Module, step: int, steps: int) -> None:
        """After step number `step` of `steps`, from 0."""
        if step >= steps * (1.0 - self._share):
            self._averaged.update_parameters(network)

    def of(self, network: nn.Module) -> nn.Module:
        """The mean, or the last iterate where nothing was to be averaged."""
        averaged: nn.Module = self._averaged.module
        return averaged if self._share else network


@cache
def _split() -> Split:
    return digit_images((1, 8, 8))


@cache
def _vectors(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """For training and for testing."""
    return inputs.of(_split().images), inputs.of(_split().test_images)


@cache
def _folder() -> TemporaryDirectory[str]:
    """Until the process ends."""
    return TemporaryDirectory()


@cache
def _model_file(network: Network, inputs: int) -> Path:
    """The network with some weights: exporting it takes longer than a run."""
    path = Path(_folder().name) / f"{network.name}_{inputs}.onnx"
    export(network.built(inputs), torch.zeros(1, inputs), path)
    return path


@cache
def _multiplier(batch_size: int, epochs: int) -> float:
    plan = TrainingPlan(
        len(_split().labels),
        Sampling.POISSON,
        DELTA,
        batch_size=batch_size,
        epochs=float(epochs),
    )
    return noise_for_epsilon(plan, EPSILON).noise_multiplier
