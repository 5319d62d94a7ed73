"""What is printed under "how" can be pasted, and says what was analysed."""

import shlex
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipcert import training
from lipcert.analysis.bounded import bounded
from lipcert.cli.network import suggest as verb
from lipcert.cli.options import chosen_settings
from lipcert.cli.output import document_text
from lipcert.gradient_stats.examples import Examples
from lipcert.report.suggestions import suggestions_document
from lipcert.settings.settings import Settings
from lipcert.settings.values import globs
from lipcert.settings.written import python_lines
from lipcert.suggestions.advice import edits_of
from lipcert.suggestions.changes import (
    LayerRadii,
    backprop_clippings,
    changes_of,
    families,
    gradient_clipping,
)
from lipcert.suggestions.records import TOPIC, Change, Suggestions
from lipcert.suggestions.session import suggest
from lipcert.training import layers
from tests.plans import planned
from tests.suggestions.networks import BatchNormed, Perceptron, ResNet, Transformer, exported, made

RUN = planned(6000, 64, None, input_box=(0.0, 1.0), epochs=4.0, target_epsilon=3.0)
FOUND = replace(Settings(**RUN), target_epsilon=None, noise_multiplier=1.5, tier="quick")
KINDS = {kind.__name__: kind for kind in (BatchNormed, Perceptron, ResNet, Transformer)}
RADII = tuple(LayerRadii(f"fc{n}", 2.0 + n, 0.25 * n, 9.0 if n == 2 else 2.0) for n in (1, 2, 3))


@cache
def changes(name: str) -> tuple[Change, ...]:
    """Everything that is ever proposed for a network, whether it helps or not."""
    kind, settings = KINDS[name], Settings(**RUN)
    base = bounded(exported(kind), settings)
    found = list(changes_of(base.unclipped, settings, base.loss))
    found += families(settings, biased=True)
    if kind is Perceptron:
        found += [*backprop_clippings(RADII), gradient_clipping(0.123456789)]
    return tuple(found)


def settings_of(how: str, tmp_path) -> Settings:
    """As the command line understands the lines that are no code."""
    code = set(python_lines(how))
    told = [line for line in how.splitlines() if line not in code]
    words = [word for line in told if line.startswith("--") for word in shlex.split(line)]
    file = tmp_path / "lipcert.toml"
    file.write_text("\n".join(line for line in told if not line.startswith("--")))
    given = ["model.onnx", "--config", str(file), *words]
    context = verb.make_context("suggest", given, resilient_parsing=False)
    return chosen_settings(context).settings


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", KINDS)
def test_options_and_tables_are_understood_and_say_what_was_analysed(name: str, tmp_path) -> None:
    for change in changes(name):
        settings = settings_of(change.how, tmp_path)
        for key, value in change.settings.items():
            if value not in (None, ()) and key != "scope":
                assert getattr(settings, key) == value, (change.change, key)


@pytest.mark.parametrize("name", KINDS)
def test_python_runs(name: str) -> None:
    """Every line, beside a module and the names that it speaks of."""
    lines = [line for change in changes(name) for line in python_lines(change.how)]
    edits = edits_of(exported(KINDS[name]).graph, Settings(**RUN))
    lines += [line for edit in edits for line in edit.how.splitlines()]
    for line in lines:
        exec(line, namespace(made(KINDS[name])))
    assert len(lines) > 8


CLIPLESS = Settings(
    mechanism="clipless", input_norm=1.0, constraint="spectral:1", bias_norm=0.5, loss_clip=1.0
)
BY_HAND = {
    "normalisation with a floor: its slope is at most 1": (ResNet, {"norm": "floor"}),
    "normalisation to norm 1": (Transformer, {"norm": "unit"}),
    "no normalisation": (ResNet, {"norm": "none"}),
    "layers without bias": (Perceptron, {"bias": False}),
    "shorter branches of residual sums": (ResNet, {"share": 0.5}),
    "flatter attention": (Transformer, {"dot": 0.25}),
    "queries and keys of norm at most 1": (Transformer, {"cosine": True}),
    "means in place of maxima": (ResNet, {"pool": "average"}),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("edit", BY_HAND)
def test_networks_that_are_suggested_have_smaller_bounds(edit: str) -> None:
    """Of the same weights, within the same constraints."""
    kind, by_hand = BY_HAND[edit]
    assert edit in {found.change for found in edits_of(exported(kind).graph, CLIPLESS)}
    before, after = (
        bounded(model, CLIPLESS) for model in (exported(kind), exported(kind, **by_hand))
    )
    norms = [np.linalg.norm(list(found.grad_norms.values())) for found in (before, after)]
    assert norms[1] < norms[0]


def namespace(model: nn.Module) -> dict[str, object]:
    space = {**vars(training), **{key: getattr(training, key) for key in training.__all__}}
    space |= vars(layers)
    token = torch.rand(2, 3, 4)
    return space | {
        "nn": nn, "torch": torch, "model": model, "branch": nn.Identity(),
        "q": token, "k": token, "x": token,
    }  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_mechanisms_in_python_are_the_same_settings(name: str) -> None:
    kinds = set()
    for change in changes(name):
        if change.topic != TOPIC:
            continue
        (line,) = python_lines(change.how)
        own = eval(line, namespace(made(KINDS[name])))
        stated = replace(Settings(**RUN), **change.settings)
        for item in fields(own):
            if item.name in change.settings:
                assert same(own.settings(run_of(stated)), stated, item.name), line
        kinds.add(own.kind)
    assert {"clipless", "gradient-clipping", "weight-clipping", "fixed-weight-norm"} <= kinds


def same(one: Settings, other: Settings, name: str) -> bool:
    """Whether two settings agree; None stands for what it means."""
    means = {"clip_scope": "flat", "conv_clip": "l1.5", "decay": "decoupled"}
    found = [getattr(settings, name) for settings in (one, other)]
    first, second = (means.get(name) if value is None else value for value in found)
    return bool(first == second)


def run_of(settings: Settings) -> training.PlannedRun:
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
    ignored = {"allocation", "tier", "loss", "constraints", "freeze", "reduction"}
    for recipe in found().recipes:
        mechanism = eval(recipe.code, namespace(made(Perceptron)))
        own = mechanism.settings(run_of(recipe.settings))
        for item in fields(Settings):
            if item.name not in ignored:
                assert same(own, recipe.settings, item.name), item.name
        names = list(dict(made(Perceptron).named_parameters()))
        frozen = {name for name in names if not recipe.settings.is_trained(name)}
        assert frozen == {name for name in names if not own.is_trained(name)}


@pytest.mark.sample(2)
@pytest.mark.parametrize("frozen", [(), ("fc1.*",)])
@pytest.mark.parametrize("kind", ["gradient-clipping", "backprop-clipping"])
def test_the_printed_run_trains_as_it_is_pasted(kind: str, frozen: tuple[str, ...]) -> None:
    recipe = next(item for item in found().recipes if item.mechanism == kind)
    settings = replace(recipe.settings, epochs=None, steps=2)
    code = f"{recipe.code[:-1]}, freeze={frozen})" if frozen else recipe.code
    own = replace(recipe, settings=settings, code=code, freeze=frozen)
    shown = document_text(suggestions_document(replace(found(), recipe=own)), "text", width=300)
    _, _, then = shown.partition("\nThen\n")
    lines = then.partition("\n\n")[0].splitlines()
    pasted = "\n".join(line for line in lines if not line.startswith("lipcert "))
    model, data = (
        made(Perceptron).train(),
        TensorDataset(torch.rand(6000, 6), torch.ones(6000).long()),
    )
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    exec(pasted, {"model": model, "loader": DataLoader(data, batch_size=settings.batch_size)})
    moved = {name for name, now in model.named_parameters() if not torch.equal(now, before[name])}
    assert moved == {name for name in before if not (frozen and name.startswith("fc1."))}
    assert ("# evaluate here" in pasted) is (kind == "backprop-clipping")


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
        patterns = globs(names, every)
        fitting = [n for n in every if not Settings(trainable=patterns).is_trained(n)]
        assert sorted(set(every) - set(fitting)) == sorted(names)
    assert globs([every[0], every[2]], every) == ("b.*.n*.weight",)
