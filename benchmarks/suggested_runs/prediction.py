"""Prediction: how loud the noise of a run is, before the first step.

What enters: a problem and a method. What leaves: noise and signal of one release as `analyze` has
them, at the weights that a run begins with. Nothing that was trained is looked at.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, final

import torch
from torch import nn

from benchmarks.suggested_runs.methods import Method, Recipe
from benchmarks.suggested_runs.problems import Problem
from lipcert.analysis.pipeline import analyze
from lipcert.importer.load import load_model
from lipcert.signal.examples import checked_examples
from lipcert.training.mechanisms import PlannedRun
from lipcert.training.network import export

__all__ = ["DELTA", "Prediction", "fresh", "model_file", "predicted"]

DELTA: Final = 1e-5
EXAMPLES: Final = 256
"""training examples whose gradients are measured"""


@final
@dataclass(frozen=True, slots=True)
class Prediction:
    """At σ = 1, to be multiplied by σ: noise_to_signal of one release, clipping_noise_to_signal of
    one with gradients clipped at C = 1. noise_ratio: of both noises. None: not a finite number."""

    noise_to_signal: float | None
    clipping_noise_to_signal: float | None
    noise_ratio: float | None


def fresh(problem: Problem, seed: int) -> nn.Module:
    """The network as a seed begins it."""
    torch.manual_seed(seed)
    return problem.network()


@cache
def predicted(problem: Problem, method: Method) -> Prediction:
    """From the network that seed 0 begins, and the first training examples."""
    recipe = method.recipe(problem, fresh(problem, 0))
    data = problem.split()
    x = recipe.enter(data.images[:EXAMPLES]).numpy()
    model = load_model(model_file(problem, method))
    examples = checked_examples(
        x, data.labels[:EXAMPLES].numpy(), x.shape[1:], "training examples", sha256=""
    )
    settings = recipe.mechanism.settings(
        PlannedRun(
            dataset_size=problem.size,
            batch_size=recipe.batch_size,
            delta=DELTA,
            epochs=recipe.epochs,
            noise_multiplier=1.0,
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = analyze(model, settings, examples=examples).usefulness
    if found is None:
        return Prediction(None, None, None)
    return Prediction(found.noise_to_signal, found.clipping_noise_to_signal, found.noise_ratio)


@cache
def model_file(problem: Problem, method: Method) -> Path:
    """The network that seed 0 begins: exporting takes longer than many a run."""
    recipe: Recipe = method.recipe(problem, fresh(problem, 0))
    path = Path(_folder().name) / f"{problem.name}_{method.name}.onnx"
    export(recipe.module, recipe.enter(problem.split().images[:1]), path)
    return path


@cache
def _folder() -> TemporaryDirectory[str]:
    """Until the process ends."""
    return TemporaryDirectory()
