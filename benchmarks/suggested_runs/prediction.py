"""Prediction: how loud the noise of a run is, before the first step.

What enters: the calibration of a run. What leaves: noise and signal as `lipcert analyze` has them,
at the weights of the calibrated file. Nothing that was trained is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

from benchmarks.suggested_runs.methods import Method
from benchmarks.suggested_runs.problems import Problem
from lipcert.gradient_stats.examples import Examples
from lipcert.training.calibration import Calibration, usefulness
from lipcert.training.exporting import export

__all__ = ["Prediction", "model_file", "predicted"]


@final
@dataclass(frozen=True, slots=True)
class Prediction:
    """Noise over signal of all steps of a run together, that of gradients clipped at C = 1 in its
    place, and the quotient of both noises. None: not a finite number."""

    noise_to_signal: float | None
    clipping_noise_to_signal: float | None
    noise_ratio: float | None


def predicted(calibration: Calibration, examples: Examples) -> Prediction:
    """Of the network that the calibration was made of."""
    found = usefulness(calibration, examples)
    if found is None:
        return Prediction(None, None, None)
    return Prediction(
        found.noise_to_signal_of_run, found.clipping_noise_to_signal_of_run, found.noise_ratio
    )


@cache
def model_file(problem: Problem, method: Method, seed: int) -> Path:
    """The network that a seed begins; that of another where everything is trained, since exporting
    takes longer than many a run."""
    recipe = method.recipe(problem, problem.fresh(seed))
    path = Path(_folder().name) / f"{problem.name}_{method.name}_{seed}.onnx"
    export(recipe.module, problem.split().images[:1], path)
    return path


@cache
def _folder() -> TemporaryDirectory[str]:
    """Until the process ends."""
    return TemporaryDirectory()
