"""Runs: a method on a problem at an ε, trained once.

What enters: names, a learning rate, a seed. What leaves: the accuracy on test examples, and what
the run was. Invariant: no run spends more than its ε at `DELTA`.

Seeds make noise and batches reproducible, as measurements must be and private runs must not.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Final, final

import torch
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.suggested_runs.methods import Method
from benchmarks.suggested_runs.prediction import model_file, predicted
from benchmarks.suggested_runs.problems import DELTA, Problem
from lipcert.privacy.accounting import noise_for_epsilon
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.training import make_private

__all__ = ["TUNING_SEED", "Run", "trained"]

TUNING_SEED: Final = 1000
"""learning rates are chosen with it, and it is never reported"""


@final
@dataclass(frozen=True, slots=True)
class Run:
    """One run, as a line of the journal. parameters: how many numbers are trained; seconds: of
    processor time, all in all; changes: of `Recipe`; the rest as `Prediction` has it."""

    network: str
    method: str
    epsilon: float
    seed: int
    rate: float
    accuracy: float
    noise_multiplier: float
    parameters: int
    steps: int
    noise_to_signal: float | None
    clipping_noise_to_signal: float | None
    noise_ratio: float | None
    seconds: float
    changes: tuple[str, ...] = ()


def trained(problem: Problem, method: Method, epsilon: float, rate: float, seed: int) -> Run:
    """One run; a seed fixes the initial weights, the batches and the noise."""
    start = time.process_time()
    recipe = method.recipe(problem, problem.fresh(seed))
    data, network = problem.split(), recipe.module
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    held = len(weights) < len(list(network.parameters()))
    optimizer = Adam(weights, lr=rate)
    examples = TensorDataset(data.images, data.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seeds are given, and much of this is not useful
        private = make_private(
            network,
            optimizer,
            DataLoader(examples, batch_size=recipe.batch_size),
            recipe.mechanism,
            delta=DELTA,
            noise_multiplier=_multiplier(problem.size, recipe.batch_size, recipe.epochs, epsilon),
            epochs=recipe.epochs,
            dataset_size=problem.size,
            model_file=model_file(problem, method, seed if held else 0),
            progress=False,
            seed=seed,
        )
    with private:
        expected = predicted(private.calibration, problem.examples())
        steps = len(private.loader)
        for x, y in private.loader:
            private.step(x, y)
        sigma, spent = private.noise_multiplier, private.epsilon
    if not spent <= epsilon:
        raise RuntimeError(f"{method.name} on {problem.name} spent ε = {spent}, not {epsilon}")
    with torch.no_grad():
        answers = network.eval()(data.test_images).argmax(dim=1)
    return Run(
        network=problem.name,
        method=method.name,
        epsilon=epsilon,
        seed=seed,
        rate=rate,
        accuracy=round(float((answers == data.test_labels).double().mean()), 5),
        noise_multiplier=sigma,
        parameters=sum(weight.numel() for weight in weights),
        steps=steps,
        noise_to_signal=_short(expected.noise_to_signal),
        clipping_noise_to_signal=_short(expected.clipping_noise_to_signal),
        noise_ratio=_short(expected.noise_ratio),
        seconds=round(time.process_time() - start, 2),
        changes=recipe.changes,
    )


def _short(number: float | None) -> float | None:
    """In five digits."""
    return None if number is None else float(f"{number:.5g}")


@cache
def _multiplier(size: int, batch_size: int, epochs: int, epsilon: float) -> float:
    plan = TrainingPlan(size, Sampling.POISSON, DELTA, batch_size=batch_size, epochs=float(epochs))
    return noise_for_epsilon(plan, epsilon).noise_multiplier
