"""Rehearsals learn where the noise lets them, drown where it does not, and decide what is first."""

import json
import re
import shlex
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn

from lipcert.analysis.bounded import bounded
from lipcert.cli.output import document_text
from lipcert.errors import UsageError
from lipcert.gradient_stats.examples import Examples
from lipcert.graph.ir import parameters_of
from lipcert.importer.load import load_model
from lipcert.report.suggestions import suggestions_document
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.suggestions.analyst import Analyst, release_of
from lipcert.suggestions.changes import gradient_clipping, held
from lipcert.suggestions.records import Change, Rehearsal, Rehearsed, Suggestions
from lipcert.suggestions.rehearsal import Part, Run, Trials, rehearsed
from lipcert.suggestions.session import Session, suggest
from tests.commands import lipcert as command
from tests.plans import planned
from tests.suggestions.networks import export

CLASSES = 10
RUN = planned(1400, 128, None, input_box=(0.0, 1.0), epochs=10.0, tier="quick")
CLIPPED = Settings(**RUN, mechanism="gradient-clipping", clip_norm=1.0, noise_multiplier=0.5)
HELD = Settings(
    **RUN,
    mechanism="clipless",
    constraint=ConstraintSpec("spectral", 1.0),
    bias_norm=0.5,
    noise_multiplier=1.0,
)
DROWNED = {"mechanism": "gradient-clipping", "clip_norm": 1.0, "noise_multiplier": 1e4}
OPTIONS = shlex.split(
    "--input-box 0 1 --dataset-size 1400 --batch-size 128 --epochs 10 --sampling poisson "
    "--noise-multiplier 1 --delta 1e-5 --tier quick --budget 6"
)


class Perceptron(nn.Sequential):
    """Of digits, untrained."""

    def __init__(self, outputs: int = CLASSES) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, outputs))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory):
    found = tmp_path_factory.mktemp("model") / "model.onnx"
    export(Perceptron(), (64,), found)
    return found


@pytest.fixture(scope="module")
def network(path):
    return load_model(path)


@cache
def digits() -> Examples:
    pixels, labels = load_digits(return_X_y=True)
    return Examples(pixels / 16.0, labels, "digits.npz")


def run_of(network, settings: Settings, examples: Examples | None = None) -> Run:
    found = bounded(network, settings)
    trials = Trials.of(found, examples or digits())
    return Run.of(Analyst(found, settings, None), (), trials)


def right(run: Run) -> float:
    """At the end of all steps."""
    *_, last = islice(run.trained(run.rate), run.steps)
    return float(np.mean(run.trials.right(last)))


def test_a_run_learns_where_the_noise_is_small(network) -> None:
    learned = right(run_of(network, CLIPPED))
    assert learned > 0.8
    assert learned == right(run_of(network, CLIPPED))


def test_a_run_drowns_where_the_noise_is_large(network) -> None:
    run = run_of(network, replace(CLIPPED, noise_multiplier=1000.0))
    assert 0.02 < np.mean(run.trials.right(run.found.graph)) < 0.25  # untrained
    assert run.trials.majority < 0.15
    assert right(run) < 0.3


def test_no_example_is_both_trained_on_and_kept_out(network) -> None:
    trials = run_of(network, CLIPPED).trials
    seen = {row.tobytes() for row in trials.trained.x}
    assert not seen & {row.tobytes() for row in trials.kept_out.x}
    assert len(trials.trained) + len(trials.kept_out) == len(digits())
    assert len(trials.kept_out) == len(digits()) // 5


def test_weights_stay_within_their_constraints(network) -> None:
    *_, last = islice(run_of(network, HELD).trained(0.3), 3)
    for name, array in parameters_of(last).items():
        length = np.linalg.norm(array, 2 if array.ndim == 2 else None)
        assert length <= (1.0 if array.ndim == 2 else 0.5) * (1.0 + 1e-9), name


@pytest.mark.parametrize(
    "settings", [replace(CLIPPED, reduction="sum"), replace(HELD, allocation="optimal")]
)
def test_the_noise_is_that_of_the_release(network, settings: Settings) -> None:
    divisor = {"sum": 128.0, "mean": 1.0}[settings.reduction]  # of a sum over a batch, its mean
    run = run_of(network, settings)
    for group in release_of(run.found, settings).groups:
        for name in group.parameters:
            assert run.stds[name] == pytest.approx(group.noise_std / divisor)


def test_steps_are_those_of_adam_in_torch(network) -> None:
    """At the released gradients of the same batches, with the same noise."""
    run = run_of(network, CLIPPED)
    random = np.random.default_rng(0)
    own = {
        name: torch.tensor(array, requires_grad=True)
        for name, array in parameters_of(run.found.graph).items()
    }
    optimizer = torch.optim.Adam(own.values(), lr=0.05)
    graph = run.found.graph
    for after in islice(run.trained(0.05), 4):
        mean = run._mean(graph, random)
        for name, std in run.stds.items():
            noise = std * random.standard_normal(mean[name].shape)
            own[name].grad = torch.tensor(mean[name] + noise)
        optimizer.step()
        graph = after
        for name, array in parameters_of(graph).items():
            np.testing.assert_allclose(array, own[name].detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("noise", [1e-4, 1e3])
def test_noise_alone_moves_weights_twice_their_radius(network, noise: float) -> None:
    """At the rate of a recipe, by torch's Adam and its singular values."""
    torch.manual_seed(0)
    weight, run = torch.zeros(24, 64), run_of(network, HELD)
    optimizer = torch.optim.Adam([weight], lr=run.rate)
    for _ in range(run.steps):
        weight.grad = noise * torch.randn(24, 64)
        optimizer.step()
    assert float(torch.linalg.matrix_norm(weight, 2)) == pytest.approx(2.0, rel=0.25)


def test_a_clip_learns_under_the_temperature_of_a_recipe(network) -> None:
    clipped = replace(HELD, loss_clip=0.1, noise_multiplier=0.5)
    plain, cold = (right(run_of(network, replace(clipped, temperature=t))) for t in (1.0, 0.125))
    assert cold > max(0.7, plain + 0.1)


def test_examples_of_classes_are_needed(network) -> None:
    with pytest.raises(UsageError, match="needs examples with their labels"):
        suggest(network, CLIPPED, probe=True)
    targets = np.eye(CLASSES)[digits().y]
    found = bounded(network, replace(CLIPPED, loss="cosine"))
    with pytest.raises(UsageError, match="'cosine' has no accuracy, and no R²"):
        Trials.of(found, replace(digits(), y=targets))
    few = replace(digits(), x=digits().x[:9], y=digits().y[:9])
    with pytest.raises(UsageError, match="9 examples are too few"):
        Trials.of(bounded(network, CLIPPED), few)


def test_targets_are_measured_by_r_squared(network) -> None:
    """One-hot targets: a run learns them, a run that drowns does not, and their mean scores 0."""
    targets = np.eye(CLASSES)[digits().y]
    clipped = replace(CLIPPED, loss="mse", label_norm=1.0)
    reached = []
    for sigma in (0.1, 1e4):
        settings = replace(clipped, noise_multiplier=sigma)
        run = run_of(network, settings, replace(digits(), y=targets))
        trials = run.trials
        reached.append(right(run))
    assert trials.measure == "R²"
    assert reached[0] > 0.4
    assert -1.0 <= reached[1] < 0.0
    y = trials.kept_out.y
    assert float(np.mean(trials.score(y, y))) == 1.0
    assert float(np.mean(trials.score(0.0 * y + y.mean(0), y))) == pytest.approx(trials.majority)


def test_pairs_of_ends_are_counted(network) -> None:
    """Of bce each entry by its sign."""
    found = bounded(network, replace(CLIPPED, loss="bce"))
    trials = Trials.of(found, replace(digits(), y=np.eye(CLASSES)[digits().y]))
    y = trials.kept_out.y
    assert trials.measure == "ROC AUC"
    halves = (digits().y[:, None] + np.arange(CLASSES)) % CLASSES < CLASSES // 2
    even = Trials.of(found, replace(digits(), y=halves.astype(float)))
    y = even.kept_out.y
    assert even.measure == "accuracy"
    assert even.majority == pytest.approx(0.5, abs=0.05)
    assert even.score(2.0 * y - 1.0, y).tolist() == [1.0] * len(y)
    assert even.score(-np.ones(y.shape), y).tolist() == [0.5] * len(y)


def test_runs_that_predict_no_rare_class_are_ranked(network) -> None:
    """As sklearn does, although the most frequent class is most probable everywhere."""
    labels = np.random.default_rng(0).random(len(digits())) < 0.05
    trials = Trials.of(bounded(network, CLIPPED), replace(digits(), y=labels.astype(np.int64)))
    y = trials.kept_out.y
    assert (trials.measure, trials.majority) == ("ROC AUC", 0.5)
    z = np.random.default_rng(1).normal(size=(len(y), CLASSES)).round(1) - 50.0
    z[:, 0], z[:, 1] = 0.0, z[:, 1] + y
    odds = [z[:, k] - np.logaddexp.reduce(np.delete(z, k, axis=1), axis=1) for k in (0, 1)]
    score = trials.score(z, y[:, None])
    truth = (roc_auc_score(1 - y, odds[0]) + roc_auc_score(y, odds[1])) / 2
    assert np.mean(score) == pytest.approx(truth)
    assert 0.5 < np.mean(score) < 1.0
    assert np.mean(trials.score(0.0 * z, y[:, None])) == trials.majority
    assert np.std(score) / len(y) ** 0.5 > 0.02  # of a few examples of the rare class
    assert len(trials.right(network.graph)) == len(y)


PARTS = (
    Part("gradient-clipping", "clipping", (gradient_clipping(1.0),)),
    Part("clipless", "held", (held("clipless", HELD, biased=True),)),
)


def rehearsal(network, parts: tuple[Part, ...], seconds: float = 1.5) -> Rehearsal:
    settings = Settings(**RUN, noise_multiplier=0.5)
    base = bounded(network, settings)
    return rehearsed(parts, Analyst(base, settings, None), Trials.of(base, digits()), seconds)


@pytest.mark.nightly
def test_better_is_what_is_right_more_often_beyond_doubt(network) -> None:
    """A run that drowns beside one that learns, either way, and a run beside itself."""
    loud = Part("gradient-clipping", "drowned", (gradient_clipping(1e4),))
    loud = replace(loud, changes=(replace(loud.changes[0], settings=DROWNED),))
    quiet, drowned = rehearsal(network, (PARTS[0], loud)).runs
    assert quiet.margin is None
    assert drowned.margin == pytest.approx(drowned.accuracy - quiet.accuracy)
    assert drowned.margin < -0.3
    assert not drowned.better
    drowned, quiet = rehearsal(network, (loud, PARTS[0])).runs
    assert quiet.better
    _, same = rehearsal(network, (PARTS[0], PARTS[0])).runs
    assert (same.margin, same.better) == (0.0, False)


def test_all_run_equally_long_or_say_why_not(network) -> None:
    found = rehearsal(network, PARTS)
    assert {run.curve[-1][0] for run in found.runs} == {found.steps}
    assert [step for step, _ in found.runs[0].curve] == [20, 50, 100, 110]
    assert all(not run.why for run in found.runs)
    for run in rehearsal(network, PARTS, seconds=0.0).runs:
        assert run.accuracy is None
        assert run.why == "20 steps of all take longer than the 0 s there are"
        assert not run.better


def contending(network, **more: object) -> Suggestions:
    settings = Settings(**{**RUN, "batch_size": 64}, noise_multiplier=1.0)
    return suggest(network, settings, budget=30.0, **more)


def test_without_examples_nothing_stands_above_clipping(network) -> None:
    found = contending(network)
    assert found.recipe.mechanism == "gradient-clipping"
    assert found.rehearsal is None
    assert found.suggestions[0].mechanism == "gradient-clipping"
    least = min(found.recipes, key=lambda recipe: recipe.outcome.score)
    assert ("public examples" in found.unproven) == (least is not found.recipe)


@pytest.fixture(name="answers")
def _answers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, bool]]:
    """What the runs of a rehearsal reach, and whether that is better, in place of running them."""
    answers: list[tuple[float, bool]] = []

    def told(parts, analyst, trials, seconds, observe):
        runs = [
            Rehearsed(part.mechanism, part.title, 0.01, ((1, share),), share, share - 0.5, better)
            for part, (share, better) in zip(parts, answers, strict=False)
        ]
        first = parts[0].changes[0].settings
        assert (first["clip_norm"], first["clip_scope"]) == (1.0, None)
        return Rehearsal(1, 1, 1, "accuracy", 0.1, 0.1, tuple(runs))

    monkeypatch.setattr("lipcert.suggestions.session.rehearsed", told)
    return answers


@pytest.mark.nightly
def test_what_a_rehearsal_shows_to_be_better_is_first(
    network, answers: list[tuple[float, bool]]
) -> None:
    """Decided by the runs alone, whatever the ratio says."""
    answers += [(0.5, False), *[(0.4, False)] * 9]
    plain = contending(network, examples=digits(), probe=True)
    assert plain.recipe.mechanism == "gradient-clipping"
    answers[1:3] = [(0.6, True), (0.7, True)]
    found = contending(network, examples=digits(), probe=True)
    assert found.recipe.accuracy_probe == 0.7
    assert found.recipe.mechanism != "gradient-clipping"
    assert found.recipes[0] == found.recipe
    assert found.recipes[1].mechanism == "gradient-clipping"
    assert not found.unproven
    for kind in ("text", "markdown"):
        shown = document_text(suggestions_document(found), kind, width=160)
        assert "from the same start" in shown
        assert "0.700" in shown
        assert re.search(
            r"0\.500 +(\| )?0\.000 *(\|[ |]+)?\n.* 0\.600 +(\| )?0\.100 +(\| )?better", shown
        )


@pytest.mark.parametrize(("margin", "stays"), [(-0.1, False), (0.01, False), (0.1, True)])
def test_another_clip_that_is_not_clearly_better_gives_way_to_plain_clipping(
    network,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[tuple[float, bool]],
    margin: float,
    stays: bool,
) -> None:
    """By the runs alone: at C = 1, in the same run, and beside no other mechanism."""
    answers += [(0.5, False), (0.5 + margin, False), *[(0.1, False)] * 9]
    monkeypatch.setattr(Session, "_preference", by_median)
    found = contending(network, examples=digits())
    assert (found.recipe.settings.clip_norm == 1.0) is not stays
    assert found.recipe.accuracy_probe == (0.5 + margin if stays else 0.5)
    assert len({item.mechanism for item in found.recipes}) == len(found.recipes)
    if not stays:
        assert {change.topic for change in found.recipe.changes} <= {"mechanism", "run"}


def test_a_rate_that_a_rehearsal_shows_to_be_better_is_taken(
    network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(parts: tuple[Part, ...], *_: object) -> Rehearsal:
        runs = [Rehearsed(x.mechanism, x.title, 0.1, (), x.pace, 0.0, x.pace > 1.0) for x in parts]
        return Rehearsal(1, 1, 1, "accuracy", 0.1, 0.1, tuple(runs))

    own = contending(network).recipe
    monkeypatch.setattr("lipcert.suggestions.session.rehearsed", told)
    found = contending(network, examples=digits())
    assert found.recipe.learning_rate == pytest.approx(2.0 * own.learning_rate, rel=0.03)


def by_median(session: Session, family: Change) -> float:
    """Prefers clipping at the median norm, whatever its score."""
    return float("median" not in family.change)


@pytest.mark.nightly
def test_reports_show_curves_and_results(path, tmp_path) -> None:
    np.savez(tmp_path / "digits.npz", x=digits().x, y=digits().y)
    words = ["suggest", str(path), "--data", str(tmp_path / "digits.npz"), "--probe", *OPTIONS]
    found = json.loads(command([*words, "--format", "json"]).stdout)
    assert "LC410" in {item["code"] for item in found["diagnostics"]}
    assert found["probed"]["kept_out"] == len(digits()) // 5
    assert found["probed"]["before"] < 0.25
    assert found["recipe"]["accuracy_probe"] > 0.5
    first, *others = found["rehearsal"]["runs"]
    assert first["mechanism"] == "gradient-clipping"
    assert first["curve"][-1] == [found["rehearsal"]["steps"], first["accuracy"]]
    assert others


def test_the_command_needs_examples(path) -> None:
    refused = command(["suggest", str(path), "--probe", *OPTIONS])
    assert refused.exit_code == 2
    assert "--data WHERE" in refused.stderr
