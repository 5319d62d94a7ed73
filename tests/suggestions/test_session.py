"""Every number that is suggested is that of an analysis of the network under these settings."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lipcert.analysis.bounded import bounded
from lipcert.analysis.observing import observed_at
from lipcert.analysis.pipeline import analyze, reported
from lipcert.gradient_stats.examples import Examples
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from lipcert.suggestions.records import Outcome, Suggestions
from lipcert.suggestions.session import suggest
from tests.plans import planned
from tests.suggestions.networks import BatchNormed, Perceptron, Transformer, exported

MODELS = Path(__file__).resolve().parents[2] / "models"
PLANNED = planned(6000, 64, 1.5, input_box=(0.0, 1.0), epochs=4.0, tier="quick")
NAMES = ("mlp", "batch normed", "transformer")
LOSSES = {"mlp": "cross-entropy", "batch normed": "bce", "transformer": "bce"}
PRECISION = 1e-9
CLIPPING = "gradient-clipping"


@cache
def model(name: str):
    kinds = {"mlp": Perceptron, "batch normed": BatchNormed, "transformer": Transformer}
    return exported(kinds[name]) if name in kinds else load_model(MODELS / f"{name}.onnx")


def settings_of(name: str) -> Settings:
    return Settings(**PLANNED, loss=LOSSES[name])


@cache
def examples(name: str) -> Examples:
    shape = model(name).graph.input_shape
    random = np.random.default_rng(1)
    classes = model(name).graph.output_shape[-1]
    x, y = random.random((4, *shape)), random.integers(classes, size=4)
    if LOSSES[name] == "bce":
        y = random.integers(2, size=(4, classes))
    return Examples(x, y, "generated", is_private=False)


@cache
def found(name: str) -> Suggestions:
    return suggest(model(name), settings_of(name), examples(name), budget=6000.0)


def again(name: str, settings: dict[str, object]) -> Outcome:
    """By the public functions that `analyze` is made of."""
    chosen = replace(settings_of(name), **settings)
    derived = bounded(model(name), chosen)
    observed = observed_at(derived, chosen, examples(name))
    analysis = reported(model(name), chosen, derived, observed)
    use = analysis.usefulness
    return Outcome(
        grad_norm=analysis.network.grad_norm,
        sensitivity=analysis.network.sensitivity,
        noise=use.noise,
        noise_to_signal=use.noise_to_signal,
        noise_to_signal_of_run=use.noise_to_signal_of_run,
        noise_to_signal_of_one=None,
        relative_cost=use.relative_cost,
        verdict=use.verdict,
    )


def assert_same(ours: Outcome, theirs: Outcome) -> None:
    for name in ("grad_norm", "sensitivity", "noise", "noise_to_signal", "noise_to_signal_of_run"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one is None) is (other is None), name
        assert one is None or one == pytest.approx(other, rel=PRECISION), name
    assert ours.verdict == theirs.verdict


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_every_suggestion_is_what_a_second_analysis_says(name: str) -> None:
    result = found(name)
    home = settings_of(name).mechanism
    for item in (*result.suggestions, *result.others):
        assert item.mechanism != home or item.change.topic == "mechanism"
        assert_same(item.outcome, again(name, dict(item.settings)))


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_is_what_a_second_analysis_says(name: str) -> None:
    for recipe in found(name).recipes:
        assert_same(recipe.outcome, again(name, dict(recipe.changed)))
        assert recipe.settings == replace(settings_of(name), **recipe.changed)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_suggestions_are_ranked_and_the_recipe_is_no_worse_than_any_clipping(name: str) -> None:
    result = found(name)
    for items in (result.suggestions, result.others):
        ranks = [(item.mechanism != CLIPPING, item.outcome.score) for item in items]
        assert ranks == sorted(ranks)
    clipped = [item for item in result.suggestions if item.mechanism == CLIPPING]
    assert clipped
    assert result.recipe.mechanism == CLIPPING
    assert all(result.recipe.outcome.score <= item.outcome.score for item in clipped)
    assert result.recipe in result.recipes
    least = min(recipe.outcome.score for recipe in result.recipes)
    assert bool(result.unproven) == (least < result.recipe.outcome.score)
    assert (result.rehearsal, result.untried) == (None, ())


def test_the_baseline_is_what_analyze_says() -> None:
    analysis = analyze(model("mlp"), settings_of("mlp"), examples=examples("mlp"))
    assert found("mlp").baseline.grad_norm == analysis.network.grad_norm
    assert found("mlp").baseline.noise_to_signal == pytest.approx(
        analysis.usefulness.noise_to_signal, rel=PRECISION
    )


def test_a_transformer_without_useful_bound_is_told_the_ways_out() -> None:
    result = found("transformer")
    (remark,) = result.remarks
    assert "No useful bound by weights alone" in remark
    assert {"gradient-clipping", "backprop-clipping"} <= {item.mechanism for item in result.recipes}
    assert any("only head trained" in item.change.change for item in result.others)
    edits = {edit.change for edit in result.edits}
    assert edits >= {"normalisation to norm 1", "flatter attention"}


def test_other_mechanisms_than_that_of_the_settings_are_tried_too() -> None:
    settings = Settings(**PLANNED, mechanism="gradient-clipping", clip_norm=3.0)
    result = suggest(model("mlp"), settings, examples("mlp"), budget=600.0)
    assert result.baseline.grad_norm == pytest.approx(3.0)
    assert {"clipless", "backprop-clipping"} <= {item.mechanism for item in result.recipes}
    assert result.recipe.outcome.score <= result.baseline.score


@pytest.mark.nightly
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_a_shuffle_is_told_what_balls_in_bins_would_save(neighbours: str) -> None:
    """In the recipe where the relation stays, beside it where it would be another."""
    settings = replace(
        settings_of("mlp"), sampling="shuffle", neighbours=neighbours, noise_multiplier=None,
        target_epsilon=3.0, dataset_size=1280,
    )  # fmt: skip
    result = suggest(model("mlp"), settings, examples("mlp"), budget=600.0)
    made = [change for change in result.recipe.changes if change.topic == "sampling"]
    apart = [item.change for item in result.others if item.change.topic == "sampling"]
    (change,) = made or apart
    assert bool(made) == (neighbours == "zero-out")
    assert change.how.startswith("--sampling balls-in-bins")
    assert ("--neighbours add-remove" in change.how) == bool(apart)
    less, more = map(
        float, re.findall(r"noise multiplier ([\d.]+), not ([\d.]+)", change.change)[0]
    )
    assert less < more / 1.5


def test_without_time_little_is_tried_and_the_rest_is_named() -> None:
    result = suggest(model("mlp"), settings_of("mlp"), examples("mlp"), budget=1e-6)
    assert result.untried
    assert result.recipe.mechanism == "gradient-clipping"
    (rival,) = result.suggestions
    assert rival.outcome == result.clipping == result.recipe.outcome


@pytest.mark.sample(1)
@pytest.mark.parametrize("budget", [1e-6, 6000.0])
def test_a_batch_normalisation_is_the_first_thing_said(budget: float) -> None:
    """Of a file: no private run can have it, and the numbers are those of evaluation mode."""
    name = "batch normed"
    result = (
        found(name)
        if budget > 1.0
        else suggest(model(name), settings_of(name), examples(name), budget=budget)
    )
    assert result.stops[0].startswith("BatchNorm (norm1, norm2) mixes")
    assert "make_trainable" in result.stops[0]
    assert result.edits[0].how == "nn.GroupNorm(4, 4)  # norm1, norm2"


@pytest.mark.nightly
def test_the_head_alone_is_no_recipe() -> None:
    """What a layer would learn is no part of the noise, nor of the signal at the first weights."""
    for name in NAMES:
        result = found(name)
        for recipe in result.recipes:
            assert not {change.topic for change in recipe.changes} & {"head"}
        for item in result.suggestions:
            assert item.change.topic not in {"head", "run"}


def test_what_contradicts_the_settings_is_skipped_with_a_reason() -> None:
    """Here, batches that the accountant of the settings does not know."""
    settings = replace(
        settings_of("mlp"), sampling="shuffle", neighbours="zero-out", accountant="rdp",
        noise_multiplier=None, target_epsilon=3.0,
    )  # fmt: skip
    (item,) = suggest(model("mlp"), settings, examples("mlp"), budget=600.0).skipped
    assert item.change.startswith("balls in bins in place of a shuffle")
    assert "rdp has no sound answer for balls-in-bins" in item.why


def test_signal_may_be_drawn() -> None:
    result = suggest(model("mlp"), settings_of("mlp"), budget=600.0)
    assert result.source == "random admissible inputs"
    assert not result.is_private
    assert result.examples > 1
    assert result.baseline.noise_to_signal is not None
