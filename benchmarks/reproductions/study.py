"""Study: one method of private training on one data set, tuned and then measured over seeds.

What enters: a problem, a planned run and a method with its few candidates. What leaves: test
accuracies, one per seed. A seed fixes the split, the initial weights, the batches and the noise.

The candidate is chosen on seeds of its own and measured on others. As in the papers, the privacy
that tuning costs is not accounted for.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, final

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.reproductions.datasets import PROBLEMS, Problem
from benchmarks.reproductions.sample import Sample
from lipcert.privacy.accounting import noise_for_epsilon
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.training import TrainingMechanism, make_private
from lipcert.training.exporting import export
from lipcert.training.layers import BoundedGroupNorm

__all__ = [
    "Candidate",
    "Method",
    "Perceptron",
    "PlannedStudy",
    "accuracies",
    "accuracy",
    "chosen",
    "summary",
]

TUNING_SEEDS: Final = range(1000, 1002)
HIDDEN: Final = 16
GROUPS: Final = 2


@final
@dataclass(frozen=True, slots=True)
class PlannedStudy:
    """A data set, the run on it, and on how many seeds it is measured."""

    problem: str
    epsilon: float
    delta: float
    batch_size: int
    epochs: int
    seeds: int

    def plan(self) -> TrainingPlan:
        """For the accountant."""
        return TrainingPlan(
            problem(self.problem).training_examples,
            Sampling.POISSON,
            self.delta,
            batch_size=self.batch_size,
            epochs=float(self.epochs),
        )


@final
@dataclass(frozen=True, slots=True)
class Perceptron:
    """One hidden layer, ReLU. norm_floor: α of group normalisation before the ReLU, that is of
    (x − μ)/max(α, σ); None for none."""

    norm_floor: float | None = None

    def for_problem(self, given: Problem) -> nn.Sequential:
        """With weights drawn at random."""
        layers: list[nn.Module] = [nn.Linear(given.x.shape[1], HIDDEN)]
        if self.norm_floor is not None:
            layers.append(BoundedGroupNorm(GROUPS, HIDDEN, self.norm_floor))
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(HIDDEN, given.classes))


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A mechanism, a network and Adam's learning rate. label: what is tuned, in words."""

    mechanism: TrainingMechanism
    network: Perceptron
    rate: float
    label: str


@final
@dataclass(frozen=True, slots=True)
class Method:
    """What a row of the table is about; of the candidates one is chosen."""

    name: str
    candidates: tuple[Candidate, ...]


@cache
def problem(name: str) -> Problem:
    """Read once."""
    return PROBLEMS[name]()


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """For the files of the networks, while the process lives."""
    return tempfile.TemporaryDirectory()


@cache
def model_file(name: str, network: Perceptron) -> Path:
    """A network as a file, which is written once; its weights do not matter."""
    given = problem(name)
    path = Path(folder().name) / f"{name} {network.norm_floor}.onnx"
    export(network.for_problem(given), given.x[:1], path)
    return path


@cache
def multiplier(study: PlannedStudy) -> float:
    """σ of the planned ε, the same for all methods."""
    return noise_for_epsilon(study.plan(), study.epsilon).noise_multiplier


def chosen(study: PlannedStudy, method: Method) -> Candidate:
    """The candidate of the highest mean accuracy on the tuning seeds."""
    return max(
        method.candidates,
        key=lambda candidate: sum(accuracies(study, candidate, TUNING_SEEDS)),
    )


def accuracies(
    study: PlannedStudy, candidate: Candidate, seeds: range | None = None
) -> list[float]:
    """One run per seed."""
    return [accuracy(study, candidate, seed) for seed in seeds or range(study.seeds)]


def accuracy(study: PlannedStudy, candidate: Candidate, seed: int) -> float:
    """Share of the test examples that are classified correctly after one private run."""
    given = problem(study.problem)
    split = given.split(seed)
    torch.manual_seed(seed)
    network = candidate.network.for_problem(given)
    optimizer = torch.optim.Adam(network.parameters(), lr=candidate.rate)
    loader = DataLoader(TensorDataset(split.x, split.y), batch_size=study.batch_size)
    with make_private(
        network,
        optimizer,
        loader,
        candidate.mechanism,
        delta=study.delta,
        noise_multiplier=multiplier(study),
        epochs=study.epochs,
        dataset_size=len(loader.dataset),
        seed=seed,
        model_file=model_file(study.problem, candidate.network),
    ) as private:
        for x, y in private.loader:
            private.step(x, y)
        if private.epsilon > study.epsilon * (1.0 + 1e-9):
            raise RuntimeError(f"the run spent ε = {private.epsilon}, not {study.epsilon}")
    network.eval()
    with torch.no_grad():
        return float((network(split.test_x).argmax(dim=1) == split.test_y).double().mean())


def summary(accuracies: list[float]) -> str:
    """Mean and standard error."""
    found = Sample.of(accuracies)
    return f"{found.mean:.3f} ± {found.error:.3f} (s.e., {found.count} seeds)"
