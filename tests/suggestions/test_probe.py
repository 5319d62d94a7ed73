"""Short runs learn where the noise lets them, drown where it does not, and do what they say."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from lipcert.analysis.bounded import Bounded, bounded
from lipcert.analysis.planned import planned_multiplier
from lipcert.analysis.release import Release
from lipcert.errors import NoVerdictError, UsageError
from lipcert.importer.load import load_model
from lipcert.importer.model import ImportedModel
from lipcert.report.formats import suggestions_report
from lipcert.settings import ConstraintSpec, Settings
from lipcert.signal.examples import Examples
from lipcert.suggestions.analyst import release_of
from lipcert.suggestions.engine import suggest
from lipcert.suggestions.probe import Run, Trials, accuracy_after
from lipcert.viewed import parameters_of
from tests.commands import lipcert as command
from tests.suggestions.networks import export

CLASSES = 10
RUN = {
    "input_box": (0.0, 1.0),
    "dataset_size": 1400,
    "batch_size": 128,
    "epochs": 10.0,
    "sampling": "poisson",
    "delta": 1e-5,
    "tier": "quick",
}
CLIPPED = Settings(**RUN, mechanism="gradient-clipping", clip_norm=1.0, noise_multiplier=0.5)
HELD = Settings(
    **RUN,
    mechanism="clipless",
    constraint=ConstraintSpec("spectral", 1.0),
    bias_norm=0.5,
    noise_multiplier=1.0,
)
ENOUGH = 1e6
"""seconds"""
OPTIONS = shlex.split(
    "--input-box 0 1 --dataset-size 1400 --batch-size 128 --epochs 10 --sampling poisson "
    "--noise-multiplier 1 --delta 1e-5 --tier quick --no-cache --budget 8"
)


class Perceptron(nn.Sequential):
    """Of digits, untrained."""

    def __init__(self, outputs: int = CLASSES) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, outputs))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "model.onnx"
    export(Perceptron(), (64,), found)
    return found


@pytest.fixture(scope="module")
def network(path: Path) -> ImportedModel:
    return load_model(path)


@cache
def digits() -> Examples:
    pixels, labels = load_digits(return_X_y=True)
    return Examples(pixels / 16.0, labels, "digits.npz")


def noised(network: ImportedModel, settings: Settings) -> tuple[Bounded, Release, Trials]:
    found = bounded(network, settings)
    released = release_of(found, settings, planned_multiplier)
    return found, released, Trials.of(found, digits())


def accuracy(network: ImportedModel, settings: Settings, seconds: float = ENOUGH) -> float:
    found, released, trials = noised(network, settings)
    return accuracy_after(found, settings, released, trials, seconds)


def test_a_run_learns_where_the_noise_is_small(network: ImportedModel) -> None:
    learned = accuracy(network, CLIPPED)
    assert learned > 0.8
    assert learned == accuracy(network, CLIPPED)


def test_a_run_drowns_where_the_noise_is_large(network: ImportedModel) -> None:
    found, _, trials = noised(network, CLIPPED)
    assert 0.02 < trials.right(found.graph) < 0.25  # untrained
    assert trials.majority < 0.15
    assert accuracy(network, replace(CLIPPED, noise_multiplier=1000.0)) < 0.3


def test_no_example_is_both_trained_on_and_kept_out(network: ImportedModel) -> None:
    _, _, trials = noised(network, CLIPPED)
    seen = {row.tobytes() for row in trials.trained.x}
    assert not seen & {row.tobytes() for row in trials.kept_out.x}
    assert len(trials.trained) + len(trials.kept_out) == len(digits())
    assert len(trials.kept_out) == len(digits()) // 5


def test_weights_stay_within_their_constraints(network: ImportedModel) -> None:
    found, released, trials = noised(network, HELD)
    run = replace(Run.of(found, HELD, released, trials, ENOUGH), steps=3)
    for name, array in parameters_of(run.trained(5.0)).items():
        length = np.linalg.norm(array, 2 if array.ndim == 2 else None)
        assert length <= (1.0 if array.ndim == 2 else 0.5) * (1.0 + 1e-9), name


@pytest.mark.parametrize(
    "settings", [replace(CLIPPED, reduction="sum"), replace(HELD, allocation="optimal")]
)
def test_the_noise_is_that_of_the_release(network: ImportedModel, settings: Settings) -> None:
    """One step along almost nothing but noise, which no constraint shortens."""
    divisor = {"sum": 128.0, "mean": 1.0}[settings.reduction]  # of a sum over a batch, its mean
    settings = replace(settings, noise_multiplier=1e9)
    found, released, trials = noised(network, settings)
    run = Run.of(found, settings, released, trials, ENOUGH)
    alone = replace(run, steps=1, settings=replace(CLIPPED))
    before, after = parameters_of(found.graph), parameters_of(alone.trained(1.0))
    rates = []
    for group in found.groups:
        noise = released.noise(group.name)
        assert noise is not None
        names = [item.name for item in group.parameters]
        moved = np.concatenate([(after[name] - before[name]).reshape(-1) for name in names])
        rates.append(float(np.std(moved)) / noise.noise_std.value)
        for name in names:
            assert run.stds[name] == pytest.approx(noise.noise_std.value / divisor)
    assert max(rates) == pytest.approx(min(rates), rel=0.3)
    size, moved = (
        math.sqrt(sum(float(np.sum((after[name] * end - before[name]) ** 2)) for name in before))
        for end in (0.0, 1.0)
    )
    assert moved == pytest.approx(size, rel=0.1)


def test_what_takes_too_long_or_has_no_noise_is_not_run(network: ImportedModel) -> None:
    with pytest.raises(NoVerdictError, match=r"20 steps would take about \d+ s, and there are 0 s"):
        accuracy(network, CLIPPED, seconds=1e-3)
    found, released, trials = noised(network, CLIPPED)
    shorter = Run.of(found, CLIPPED, released, trials, 0.3)
    assert 20 <= shorter.steps < Run.of(found, CLIPPED, released, trials, ENOUGH).steps


def test_examples_of_classes_are_needed(network: ImportedModel) -> None:
    with pytest.raises(UsageError, match="needs examples with their labels"):
        suggest(network, CLIPPED, probe=True)
    found = bounded(network, replace(CLIPPED, loss="mse", label_norm=1.0))
    with pytest.raises(UsageError, match="losses over several classes"):
        Trials.of(found, digits())
    few = replace(digits(), x=digits().x[:9], y=digits().y[:9])
    with pytest.raises(UsageError, match="9 examples are too few"):
        Trials.of(bounded(network, CLIPPED), few)


def test_suggestions_say_what_short_runs_reached(path: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "digits.npz", x=digits().x, y=digits().y)
    words = ["suggest", str(path), "--data", str(tmp_path / "digits.npz"), "--probe", *OPTIONS]
    found = json.loads(command([*words, "--format", "json"]).stdout)
    assert "LC410" in {item["code"] for item in found["diagnostics"]}
    assert found["probed"]["kept_out"] == len(digits()) // 5
    assert found["probed"]["before"] < 0.25
    assert found["recipe"]["accuracy_probe"] > 0.7
    reached = [item["accuracy_probe"] for item in found["suggestions"]]
    assert all(0.0 <= number <= 1.0 for number in reached[:4])
    assert max(reached[:4]) > 0.7
    assert set(reached[4:]) == {None}


def test_reports_show_what_short_runs_reached(network: ImportedModel) -> None:
    found = suggest(network, CLIPPED, digits(), budget=4.0, probe=True)
    text = suggestions_report(found, "text", width=120, color=False, show_all=False)
    assert "short runs in numpy did not see" in text
    assert f"{found.recipe.accuracy_probe:.3f}" in text
    slow = suggest(network, CLIPPED, digits(), budget=0.1, probe=True)
    assert slow.recipe.accuracy_probe is None
    assert any("probe of" in item.change and "skipped" in item.why for item in slow.skipped)


def test_the_command_needs_examples(path: Path) -> None:
    refused = command(["suggest", str(path), "--probe", *OPTIONS])
    assert refused.exit_code == 2
    assert "--data WHERE" in refused.stderr
