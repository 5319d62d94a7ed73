"""Every number that is suggested is that of an analysis of the network with these very changes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lipcert.analysis.bounded import Bounded, bounded, bounded_again
from lipcert.analysis.observing import observed_at
from lipcert.analysis.pipeline import analyze, reported
from lipcert.gradient_stats.examples import Examples
from lipcert.graph.viewed import graph_at, parameters_of
from lipcert.importer.load import load_model
from lipcert.importer.model import ImportedModel
from lipcert.settings.settings import Settings
from lipcert.suggestions.engine import suggest
from lipcert.suggestions.records import Change, Outcome, Suggestions
from tests.suggestions.networks import BatchNormed, Perceptron, Transformer, exported

MODELS = Path(__file__).resolve().parents[2] / "models"
PLANNED = {
    "input_box": (0.0, 1.0),
    "batch_size": 64,
    "dataset_size": 6000,
    "sampling": "poisson",
    "epochs": 4.0,
    "delta": 1e-5,
    "noise_multiplier": 1.5,
    "tier": "quick",
}
NAMES = ("mlp", "batch normed", "transformer")
LOSSES = {"mlp": "cross-entropy", "batch normed": "bce", "transformer": "bce"}
PRECISION = 1e-9
CLIPPING = "gradient-clipping"


@cache
def model(name: str) -> ImportedModel:
    kinds = {"mlp": Perceptron, "batch normed": BatchNormed, "transformer": Transformer}
    return exported(kinds[name]) if name in kinds else load_model(MODELS / f"{name}.onnx")


def planned(name: str) -> Settings:
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
    return suggest(model(name), planned(name), examples(name), budget=6000.0)


@cache
def first(name: str) -> Bounded:
    return bounded(model(name), planned(name))


def again(name: str, changes: tuple[Change, ...], settings: dict[str, object]) -> Outcome:
    """By the public functions that `analyze` is made of."""
    chosen = replace(planned(name), **settings)
    base = first(name)
    weights = {key: array for change in changes for key, array in change.weights.items()}
    edits = [edit for change in changes for edit in change.edits]
    derived = bounded_again(base, chosen, weights or None, edits)
    x = examples(name).x
    for change in changes:
        x = x if change.prepared is None else change.prepared(x)
    shown = derived.shown_at(weights)
    observed = observed_at(shown, chosen, replace(examples(name), x=x))
    analysis = reported(model(name), chosen, derived, observed)
    use = analysis.usefulness
    assert use is not None
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


@pytest.mark.parametrize("name", NAMES)
def test_every_suggestion_is_what_a_second_analysis_says(name: str) -> None:
    result = found(name)
    home = planned(name).mechanism
    for item in (*result.suggestions, *result.others):
        assert item.mechanism != home or item.change.topic == "mechanism"
        beside = result.recipe.changes if item.with_recipe else ()
        assert_same(item.outcome, again(name, (*beside, item.change), dict(item.settings)))


@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_is_what_a_second_analysis_says(name: str) -> None:
    for recipe in found(name).recipes:
        assert_same(recipe.outcome, again(name, recipe.changes, dict(recipe.changed)))
        assert recipe.settings == replace(planned(name), **recipe.changed)


@pytest.mark.parametrize("name", NAMES)
def test_suggestions_are_ranked_and_the_recipe_is_no_worse_than_any_clipping(name: str) -> None:
    result = found(name)
    for items in (result.suggestions, result.others):
        ranks = [(item.mechanism != CLIPPING, item.outcome.score) for item in items]
        assert ranks == sorted(ranks)
    clipped = [item for item in result.suggestions if item.mechanism == CLIPPING]
    assert clipped
    assert result.recipe.mechanism == CLIPPING
    private = [item for item in clipped if item.change.separates or not result.stops]
    assert all(result.recipe.outcome.score <= item.outcome.score for item in private)
    assert result.recipe in result.recipes
    assert not result.untried


def test_the_baseline_is_what_analyze_says() -> None:
    analysis = analyze(model("mlp"), planned("mlp"), examples=examples("mlp"))
    assert found("mlp").baseline.grad_norm == analysis.network.grad_norm
    assert analysis.usefulness is not None
    assert found("mlp").baseline.noise_to_signal == pytest.approx(
        analysis.usefulness.noise_to_signal, rel=PRECISION
    )


def test_a_transformer_without_useful_bound_is_told_the_ways_out() -> None:
    result = found("transformer")
    first, *ways = result.remarks
    assert "No useful bound by weights alone" in first
    assert any("gradient-clipping" in way for way in ways)
    assert any("backprop-clipping" in way for way in ways)
    assert any("only head trained" in way for way in ways)
    assert not any("epsilon" in item.change.change for item in result.suggestions)
    clipless = next(item for item in result.recipes if item.mechanism == "clipless")
    assert clipless.outcome.grad_norm is not None
    assert clipless.outcome.grad_norm < 100.0


def test_changes_that_keep_the_function_keep_it() -> None:
    """Their settings, weights and edits leave every output where it was."""
    for name in NAMES:
        own = parameters_of(model(name).graph)
        for item in found(name).suggestions:
            change = item.change
            if change.keeps_function:
                assert not change.edits
                assert change.prepared is None
                for key, array in change.weights.items():
                    np.testing.assert_array_equal(array, own[key])


def test_other_mechanisms_than_that_of_the_settings_are_tried_too() -> None:
    settings = Settings(**PLANNED, mechanism="gradient-clipping", clip_norm=3.0)
    result = suggest(model("mlp"), settings, examples("mlp"), budget=600.0)
    assert result.baseline.grad_norm == pytest.approx(3.0)
    assert {"clipless", "backprop-clipping"} <= {item.mechanism for item in result.recipes}
    assert result.recipe.outcome.score <= result.baseline.score


def test_without_time_little_is_tried_and_the_rest_is_named() -> None:
    result = suggest(model("mlp"), planned("mlp"), examples("mlp"), budget=1e-6)
    assert result.untried
    assert result.recipe.mechanism == "gradient-clipping"
    (rival,) = result.suggestions
    assert rival.outcome == result.clipping == result.recipe.outcome


@pytest.mark.parametrize("budget", [1e-6, 6000.0])
def test_no_recipe_lets_examples_mix(budget: float) -> None:
    """A batch normalisation has no part in any of them, however little time there is."""
    result = (
        found("batch normed")
        if budget > 1.0
        else suggest(
            model("batch normed"), planned("batch normed"), examples("batch normed"), budget=budget
        )
    )
    assert "BatchNorm" in result.stops[0]
    for recipe in result.recipes:
        assert any(change.separates for change in recipe.changes)
        assert not recipe.keeps_function


def test_layers_are_frozen_in_no_recipe() -> None:
    """What a layer would learn is no part of the noise, nor of the signal at the first weights."""
    for name in NAMES:
        result = found(name)
        for recipe in result.recipes:
            assert not {change.topic for change in recipe.changes} & {"frozen layer", "head"}
        for item in result.suggestions:
            assert item.change.topic not in {"frozen layer", "head", "run"}
        for item in result.others:
            if item.change.topic == "frozen layer":
                assert item.outcome.score < result.recipe.outcome.score


def test_what_contradicts_the_settings_is_skipped_with_a_reason() -> None:
    settings = Settings(**PLANNED, constraints=(("fc1.weight", "spectral:2"),), bias_norm=1.0)
    result = suggest(model("mlp"), settings, examples("mlp"), budget=600.0)
    for item in result.skipped:
        assert item.why


def test_signal_may_be_drawn() -> None:
    result = suggest(model("mlp"), planned("mlp"), budget=600.0)
    assert result.source == "random admissible inputs"
    assert not result.is_private
    assert result.examples > 1
    assert result.baseline.noise_to_signal is not None


def test_graphs_show_the_weights_that_gradients_are_measured_at() -> None:
    base = bounded(model("mlp"), Settings(input_norm=1.0))
    weights = {name: 2.0 * array for name, array in parameters_of(base.graph).items()}
    shown = bounded_again(base, Settings(input_norm=1.0), weights).shown_at(weights)
    for graph in (shown.graph, shown.unclipped):
        for name, array in parameters_of(graph).items():
            np.testing.assert_array_equal(array, weights[name])
    expected = parameters_of(graph_at(base.graph, weights))
    assert expected.keys() == weights.keys()
