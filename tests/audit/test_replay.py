"""Replays against plain autograd in float64, one example at a time, and their judgement."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from lipcert.audit.bounds import Claims, claims_of_analysis
from lipcert.audit.job import Job
from lipcert.audit.records import Verdict
from lipcert.audit.replay import Bench, Replayer
from lipcert.audit.unit_results import ALL, Family, Findings
from lipcert.audit.weight_norms import ReplayWeights
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.examples import Examples
from lipcert.graph.ir import parameters_of
from lipcert.importer.load import load_model
from lipcert.measure.precision import Precision
from lipcert.settings.settings import Settings
from tests.models.shipped import digits, gradient_norms, module, path_of

CPU = torch.device("cpu")
COUNT = 40
DEFAULTS = Settings()
NETWORKS = ("digits_mlp", "digits_cnn", "digits_orthogonal_mlp", "digits_lipschitz_cnn")


@cache
def model(name: str):
    return load_model(path_of(name), trusted=True)


@cache
def claims(name: str, settings: Settings = DEFAULTS) -> Claims:
    return claims_of_analysis(model(name), settings)


def examples(name: str, count: int = COUNT) -> Examples:
    split = digits(tuple(model(name).graph.input_shape))
    return Examples(split.images.numpy()[:count], split.labels.numpy()[:count], "digits")


def replayer(
    wanted: Claims, precision: Precision = Precision.FLOAT32, weights=None, **options
) -> Replayer:
    job = Job("m.onnx", DEFAULTS, data="d.npz", precision=precision, **options)
    return Replayer(job, ReplayWeights(weights, wanted, admissible=True), "model")


def replayed(
    wanted: Claims,
    data: Examples,
    precision: Precision = Precision.FLOAT32,
    start: int = 0,
    **options: int,
) -> Findings:
    return replayer(wanted, precision, **options).replay(data, start, len(data))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_largest_norms_are_those_of_autograd(name: str) -> None:
    wanted, data = claims(name), examples(name)
    truth = gradient_norms(
        module(name), torch.from_numpy(data.x).double(), torch.from_numpy(data.y)
    )
    exact = replayed(wanted, data, Precision.FLOAT64)
    single = replayed(wanted, data)
    for group in wanted.groups:
        norms = torch.stack([truth[parameter] for parameter in group.parameters]).norm(dim=0)
        found = exact.tallies[Family.GRADIENT][group.name]
        assert found.max_observed == pytest.approx(float(norms.max()), rel=1e-9)
        assert found.worst.index == int(norms.argmax())
        assert single.tallies[Family.GRADIENT][group.name].max_observed == pytest.approx(
            float(norms.max()), rel=1e-4
        )
    whole = torch.stack([*truth.values()]).norm(dim=0)
    found = exact.tallies[Family.WHOLE][ALL]
    assert found.max_observed == pytest.approx(float(whole.max()), rel=1e-9)
    assert found.median == pytest.approx(float(whole.median()), rel=0.011)
    assert found.bound == wanted.grad_norm
    assert (found.violations, found.undecided) == (0, 0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.BFLOAT16, Precision.FLOAT16])
@pytest.mark.parametrize("name", ["digits_mlp", "digits_mixer"])
def test_a_filter_is_no_further_off_than_its_margin(name: str, precision: Precision) -> None:
    """Also at examples of which the network is certain, where the gradient of the loss cancels."""
    wanted, data = claims(name), examples(name, 60)
    exact, short = (
        Bench(wanted, item, CPU, None, watch_values=False).measure(data.x, data.y)
        for item in (Precision.FLOAT64, precision)
    )
    for family in (Family.GRADIENT, Family.COTANGENT):
        for key, measured in exact[family].items():
            found = short[family][key].norm
            assert (measured.norm <= found * (1.0 + precision.margin) + precision.floor).all()


def test_examples_outside_are_named_and_not_held_against_bounds() -> None:
    data = examples("digits_cnn", 10)
    x = data.x.copy()
    x[2] *= 1000.0
    x[8, 0, 0, 0] = -0.5
    found = replayed(claims("digits_cnn"), replace(data, x=x), start=2)
    (check,) = found.checks
    assert check.code == "LC304"
    assert "2 of 8 examples" in check.message
    assert "example 2 has the entry" in check.message
    assert "example 8 has the entry -0.5" in check.message
    whole = replayed(claims("digits_cnn"), data, start=2).tallies[Family.GRADIENT]
    for name, tally in found.tallies[Family.GRADIENT].items():
        assert (tally.examples, tally.violations) == (6, 0)
        assert tally.worst == whole[name].worst


def test_a_label_that_is_none_is_refused_with_its_place() -> None:
    data = examples("digits_mlp", 10)
    labels = data.y.copy()
    labels[7] = 99
    with pytest.raises(NoVerdictError, match="example 7: 99"):
        replayed(claims("digits_mlp"), replace(data, y=labels), start=4)


def with_bound(wanted: Claims, bound: float) -> Claims:
    first, *others = wanted.groups
    return replace(wanted, groups=(replace(first, grad_norm=bound), *others))


@pytest.mark.parametrize(
    ("share", "violations"), [(1.0 + 1e-6, 0), (1.0, 0), (1.0 - 5e-7, 0), (1.0 - 2e-6, 1)]
)
def test_a_bound_is_judged_in_float64_to_a_millionth(share: float, violations: int) -> None:
    """Near a bound float32 cannot tell, and the example is looked at again."""
    wanted, data = claims("digits_mlp"), examples("digits_mlp")
    name = wanted.groups[0].name
    exact = replayed(wanted, data, Precision.FLOAT64).tallies[Family.GRADIENT][name]
    close = with_bound(wanted, share * exact.max_observed)
    found = replayed(close, data).tallies[Family.GRADIENT][name]
    assert (found.violations, found.undecided) == (violations, 0)
    assert found.recomputed >= 1
    assert found.worst == exact.worst


def test_a_clip_of_gradients_is_reached_and_needs_no_second_look() -> None:
    wanted = claims("digits_mlp", Settings(mechanism="gradient-clipping", clip_norm=0.5))
    found = replayed(wanted, examples("digits_mlp"))
    (tally,) = found.tallies[Family.GRADIENT].values()
    assert (tally.violations, tally.undecided, tally.recomputed) == (0, 0, 0)
    assert tally.max_observed == pytest.approx(0.5)


def test_weights_to_which_no_bound_applies_are_measured_and_not_judged() -> None:
    wanted, data = with_bound(claims("digits_mlp"), 1e-9), examples("digits_mlp", 4)
    at = ReplayWeights(None, wanted, admissible=False)
    found = Replayer(Job("m.onnx", DEFAULTS, data="d.npz"), at, "step 3").replay(data, 0, 4)
    (check,) = found.checks
    assert (check.code, check.verdict, check.where) == ("LC319", Verdict.MISMATCH, "step 3")
    assert not _violations(found)
    assert all(tally.max_observed > 1e-9 for tally in found.tallies[Family.GRADIENT].values())


def test_what_overflows_is_looked_at_again() -> None:
    """In float16, whose largest number is 65,504; in float64 the same is within its bounds."""
    wanted = claims("digits_mlp", Settings(input_box=(0.0, 1e5)))
    data = examples("digits_mlp", 4)
    large = replace(data, x=data.x * np.float32(9e4))
    found = replayed(wanted, large, Precision.FLOAT16)
    assert not _violations(found)
    tallies = found.tallies[Family.GRADIENT].values()
    assert {tally.recomputed for tally in tallies} == {4}
    assert all(np.isfinite(tally.max_observed) for tally in tallies)


def test_what_is_not_finite_in_float64_is_a_violation() -> None:
    """Weights that overflow even there."""
    wanted, data = claims("digits_mlp"), examples("digits_mlp", 4)
    weights = {
        name: 1e200 * numbers for name, numbers in parameters_of(wanted.engine.graph).items()
    }
    for precision in (Precision.FLOAT32, Precision.FLOAT64):
        found = replayer(wanted, precision, weights).replay(data, 0, len(data))
        tallies = found.tallies[Family.GRADIENT].values()
        assert any(tally.violations == 4 for tally in tallies)


def test_a_violation_that_float64_does_not_confirm_is_none() -> None:
    """A bound that is the norm itself, above which float32 rounds."""
    wanted, data = claims("digits_mlp"), examples("digits_mlp")
    name = wanted.groups[0].name
    single, exact = (
        Bench(wanted, precision, CPU, None).measure(data.x, data.y)[Family.GRADIENT][name].norm
        for precision in (Precision.FLOAT32, Precision.FLOAT64)
    )
    above = np.flatnonzero(single > exact * (1.0 + 2.0**-26))
    assert above.size, "float32 rounds some norm upwards"
    for index in above[:3]:
        tight = with_bound(wanted, float(exact[index]))
        one = replace(data, x=data.x[index : index + 1], y=data.y[index : index + 1])
        found = replayed(tight, one).tallies[Family.GRADIENT][name]
        assert (found.violations, found.undecided, found.recomputed) == (0, 0, 1)
        assert found.max_observed == pytest.approx(exact[index], rel=1e-12)


def _violations(found: Findings) -> int:
    return sum(tally.violations for names in found.tallies.values() for tally in names.values())


def test_examples_on_the_border_of_the_domain() -> None:
    """Saturated images, and images scaled to the radius in float32, half of them just outside."""
    data = examples("digits_mlp")
    bright = replace(data, x=np.ones_like(data.x))
    norms = np.linalg.norm(data.x, axis=1, keepdims=True)
    scaled = replace(data, x=(data.x / norms).astype(np.float32))
    longest = np.linalg.norm(scaled.x.astype(np.float64), axis=1).max()
    assert longest > 1.0
    for wanted, border in (
        (claims("digits_mlp"), bright),
        (claims("digits_mlp", Settings(input_norm=1.0)), scaled),
    ):
        found = replayed(wanted, border)
        assert found.checks == ()
        assert not _violations(found)
        image = found.tallies[Family.VALUE]["image"]
        assert (image.examples, image.undecided) == (COUNT, 0)
