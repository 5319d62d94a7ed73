"""What is printed under "how" can be pasted, and says what was analysed."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lipcert import training
from lipcert.analysis.bounded import bounded
from lipcert.cli.options import chosen_settings
from lipcert.cli.suggest import command
from lipcert.gradient_stats.examples import Examples
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from lipcert.suggestions import mechanisms, written
from lipcert.suggestions.changes import changes_of
from lipcert.suggestions.engine import suggest
from lipcert.suggestions.mechanisms import LayerRadii
from lipcert.suggestions.records import Change, Recipe, Suggestions
from lipcert.suggestions.structure import Structure
from lipcert.suggestions.subject import Subject
from lipcert.training import layers
from tests.suggestions.networks import (
    SHAPES,
    BatchNormed,
    Perceptron,
    ResNet,
    Transformer,
    export,
    exported,
    made,
)

RUN = {
    "input_box": (0.0, 1.0),
    "dataset_size": 6000,
    "batch_size": 64,
    "sampling": "poisson",
    "epochs": 4.0,
    "delta": 1e-5,
    "target_epsilon": 3.0,
}
FOUND = replace(Settings(**RUN), target_epsilon=None, noise_multiplier=1.5, tier="quick")
KINDS = {kind.__name__: kind for kind in (BatchNormed, Perceptron, ResNet, Transformer)}
RADII = tuple(LayerRadii(f"fc{n}", 2.0 + n, 0.25 * n, 9.0 if n == 2 else 2.0) for n in (1, 2, 3))


@cache
def changes(name: str) -> tuple[Change, ...]:
    """Everything that is ever proposed for a network, whether it helps or not."""
    kind, settings = KINDS[name], Settings(**RUN)
    base = bounded(exported(kind), settings)
    x = np.random.default_rng(0).random((8, *SHAPES[kind]))
    examples = Examples(0.5 * x, np.zeros(8, np.int64), "generated", is_private=False)
    parts = Structure(base.unclipped)
    subject = Subject(parts, settings, base.loss, base.at_input, examples)
    found = [*changes_of(subject), *mechanisms.families(settings, biased=True)]
    if kind is Perceptron:
        found += [*mechanisms.backprop_clippings(RADII), mechanisms.gradient_clipping(0.123456789)]
    return tuple(found)


def settings_of(how: str, tmp_path: Path) -> Settings:
    """As the command line understands the lines that are no code."""
    code = set(written.python_lines(how))
    told = [line for line in how.splitlines() if line not in code]
    words = [word for line in told if line.startswith("--") for word in shlex.split(line)]
    file = tmp_path / "lipcert.toml"
    file.write_text("\n".join(line for line in told if not line.startswith("--")))
    given = ["model.onnx", "--config", str(file), *words]
    context = command.make_context("suggest", given, resilient_parsing=False)
    return chosen_settings(context).settings


@pytest.mark.parametrize("name", KINDS)
def test_options_and_tables_are_understood_and_say_what_was_analysed(
    name: str, tmp_path: Path
) -> None:
    for change in changes(name):
        settings = settings_of(change.how, tmp_path)
        for key, value in change.settings.items():
            if (
                value not in (None, ())
                and key != "scope"
                and (change.is_setting or key != "freeze")
            ):
                assert getattr(settings, key) == value, (change.change, key)


@pytest.mark.parametrize("name", KINDS)
def test_python_runs(name: str) -> None:
    """Every line, beside a module and the names that it speaks of."""
    seen = 0
    for change in changes(name):
        for line in written.python_lines(change.how):
            space = namespace(made(KINDS[name]))
            exec(line, space)
            seen += 1
    assert seen > 5


def namespace(model: nn.Module) -> dict[str, object]:
    space = {**vars(training), **{key: getattr(training, key) for key in training.__all__}}
    space |= {key: getattr(layers, key) for key in layers.__all__}
    token = torch.rand(2, 3, 4)
    return space | {
        "nn": nn, "torch": torch, "model": model, "branch": nn.Identity(),
        "q": token, "k": token, "x": token,
    }  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_mechanisms_in_python_are_the_same_settings(name: str) -> None:
    kinds = set()
    for change in changes(name):
        if change.topic != mechanisms.TOPIC:
            continue
        (line,) = written.python_lines(change.how)
        own = eval(line, namespace(made(KINDS[name])))
        stated = replace(Settings(**RUN), **change.settings)
        for item in fields(own):
            if item.name in change.settings:
                assert same(own.settings(planned(stated)), stated, item.name), line
        kinds.add(own.kind)
    assert {"clipless", "gradient-clipping", "weight-clipping", "fixed-weight-norm"} <= kinds


def same(one: Settings, other: Settings, name: str) -> bool:
    """Whether two settings agree; None stands for what it means."""
    means: Mapping[str, str] = {"clip_scope": "flat", "conv_clip": "l1.5", "decay": "decoupled"}
    found = [getattr(settings, name) for settings in (one, other)]
    first, second = (means.get(name) if value is None else value for value in found)
    return bool(first == second)


def planned(settings: Settings) -> training.PlannedRun:
    names = [item.name for item in fields(training.PlannedRun)]
    return training.PlannedRun(**{name: getattr(settings, name) for name in names})


@cache
def found() -> Suggestions:
    random = np.random.default_rng(1)
    examples = Examples(
        random.random((8, 6)), random.integers(2, size=8), "generated", is_private=False
    )
    return suggest(exported(Perceptron), FOUND, examples, budget=6000.0)


def test_a_recipe_in_python_is_the_run_of_its_settings() -> None:
    ignored = {"allocation", "tier", "cache", "loss", "constraints", "freeze", "reduction"}
    for recipe in found().recipes:
        mechanism = eval(recipe.code, namespace(made(Perceptron)))
        own = mechanism.settings(planned(recipe.edited))
        for item in fields(Settings):
            if item.name not in ignored:
                assert same(own, recipe.edited, item.name), item.name
        frozen = {name for name in _names(recipe) if not recipe.edited.is_trained(name)}
        assert frozen == {name for name in _names(recipe) if not own.is_trained(name)}


def _names(recipe: Recipe) -> list[str]:
    return list(dict(by_hand(recipe).named_parameters()))


def by_hand(recipe: Recipe) -> nn.Module:
    """The module after the changes that the recipe asks for in the code."""
    edits: dict[str, object] = {}
    weights: dict[str, object] = {}
    for change in recipe.changes:
        if not change.is_setting and change.prepared is None:
            assert change.topic in {"biases", "activation", "weights"}
            edits |= {"bias": False} if change.topic == "biases" else {}
            edits |= {"act": "maxmin"} if change.topic == "activation" else {}
            weights |= dict(change.weights) if change.topic == "weights" else {}
    module = copy.deepcopy(made(Perceptron, **edits))
    with torch.no_grad():
        for name, array in weights.items():
            module.get_parameter(name).copy_(torch.from_numpy(array))
    return module


def test_the_bounds_of_a_recipe_are_those_of_the_network_edited_by_hand(tmp_path: Path) -> None:
    """Exported anew, under the settings that --apply writes."""
    edited = 0
    for number, recipe in enumerate(found().recipes):
        file = tmp_path / f"{number}.onnx"
        export(by_hand(recipe), SHAPES[Perceptron], file)
        bound = bounded(load_model(file), recipe.edited)
        whole = float(np.linalg.norm(list(bound.grad_norms.values())))
        if recipe.edited.mechanism != "gradient-clipping":
            assert whole == pytest.approx(recipe.outcome.grad_norm, rel=1e-6)
        edited += not recipe.is_setting
    assert edited


def test_globs_fit_the_names_and_nothing_else() -> None:
    every = [
        "b.0.n1.weight",
        "b.0.n1.bias",
        "b.1.n1.weight",
        "b.1.qkv.weight",
        "n1.weight",
        "odd[0]",
    ]
    for names in (every[:1], [every[0], every[2]], [every[2], every[4]], every[1:4], every[5:]):
        patterns = written.globs(names, every)
        fitting = [n for n in every if not Settings(trainable=patterns).is_trained(n)]
        assert sorted(set(every) - set(fitting)) == sorted(names)
    assert written.globs([every[0], every[2]], every) == ("b.*.n*.weight",)
