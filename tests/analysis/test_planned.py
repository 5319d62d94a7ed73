"""The privacy of a planned run, through the whole pipeline."""

import json
from functools import cache
from pathlib import Path

import dp_accounting
import pytest

from lipcert.analysis.pipeline import analyze
from lipcert.analysis.release import plan_of
from lipcert.errors import UsageError
from lipcert.importer.load import load_model
from lipcert.report.analysis import analysis_json
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.report.written import analysis_text

MODEL = Path(__file__).parents[2] / "models" / "digits_mlp.onnx"
RUN = {"dataset_size": 1000, "batch_size": 100, "sampling": "poisson", "steps": 50, "delta": 1e-4}
CONSTRAINED = {"constraint": ConstraintSpec("spectral", 1.0), "bias_norm": 1.0}


@cache
def imported():
    return load_model(MODEL, trusted=True)


def analysed(**changes):
    return analyze(imported(), Settings(tier="quick", **changes))


def epsilon(sigma: float) -> float:
    """dp-accounting's own answer on its own default grid."""
    accountant = dp_accounting.pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(sigma))
    return accountant.compose(event, 50).get_epsilon(1e-4)


def test_without_a_run_there_is_no_privacy_section() -> None:
    analysis = analysed()
    assert analysis.privacy is None
    assert "privacy" not in json.loads(analysis_json(analysis))
    assert "Privacy of the run" not in analysis_text(
        analysis, width=100, color=False, show_all=True
    )


def test_the_epsilon_of_a_run_is_the_librarys() -> None:
    analysis = analysed(noise_multiplier=2.0, **RUN, **CONSTRAINED)
    assert analysis.privacy.epsilon == pytest.approx(epsilon(2.0), rel=1e-3)
    found = json.loads(analysis_json(analysis))["privacy"]
    assert found["epsilon"] == analysis.privacy.epsilon
    names = ("delta", "noise_multiplier", "allocation", "sampling", "steps", "accountant")
    assert [found[name] for name in names] == [1e-4, 2.0, "per-layer", "poisson", 50, "pld"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("allocation", ["global", "per-layer", "optimal"])
def test_the_noise_of_every_allocation_meets_the_target(allocation: str) -> None:
    """From the noise deviations that are printed back to ε, without our own algebra."""
    analysis = analysed(target_epsilon=3.0, allocation=allocation, **RUN, **CONSTRAINED)
    assert 0.999 * 3.0 <= analysis.privacy.epsilon <= 3.0
    ratios = [group.sensitivity / group.noise_std for group in analysis.groups]
    joint = sum(ratio**2 for ratio in ratios) ** -0.5
    assert joint == pytest.approx(analysis.privacy.noise_multiplier, rel=1e-9)
    assert epsilon(joint) <= 3.0 * (1 + 1e-3)


def test_bounds_at_the_weights_of_the_file_do_not_serve_a_run() -> None:
    codes = {finding.code for finding in analysed(**RUN).diagnostics}
    assert "LC408" in codes
    assert "LC408" not in {finding.code for finding in analysed(**RUN, **CONSTRAINED).diagnostics}
    clipped = analysed(mechanism="gradient-clipping", clip_norm=1.0, **RUN)
    assert "LC408" not in {finding.code for finding in clipped.diagnostics}


def test_a_gradient_clip_needs_no_bound_of_the_network() -> None:
    analysis = analysed(mechanism="gradient-clipping", clip_norm=0.5)
    assert analysis.network.grad_norm == 0.5
    assert analysis.network.lipschitz is None
    assert [group.name for group in analysis.groups] == ["all"]
    codes = [finding.code for finding in analysis.diagnostics]
    assert "LC107" in codes
    assert not {"LC101", "LC102"} & set(codes)


def test_backpropagation_clipping_is_bounded_for_all_weights() -> None:
    analysis = analysed(mechanism="backprop-clipping", input_clip=2.0, cotangent_clip=0.25)
    assert {p.grad_norm for p in analysis.parameters if p.name.endswith("weight")} == {0.5}
    assert {p.grad_norm for p in analysis.parameters if p.name.endswith("bias")} == {0.25}
    assert analysis.assumptions.mechanism["conv_clip"] == "l1.5"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset_size": 100}, "--sampling"),
        ({"delta": 1e-5}, "--dataset-size"),
        ({"target_epsilon": 3.0}, "--dataset-size"),
        ({**RUN, "delta": None}, "--delta"),
        ({**RUN, "delta": 1.0}, "delta"),
        ({**RUN, "batch_size": 2000}, "batch-size"),
        ({**RUN, "epochs": 3.0}, "steps"),
        ({**RUN, "steps": None}, "steps"),
        ({**RUN, "sampling": "shuffle"}, "neighbours"),
        ({**RUN, "target_epsilon": -1.0}, "target-epsilon"),
        ({**RUN, "target_epsilon": 1.0, "noise_multiplier": 1.0}, "target-epsilon"),
        ({**RUN, "noise_multiplier": 0.0}, "noise-multiplier"),
    ],
)
def test_contradictions_are_usage_errors(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_of(Settings(**changes))


def test_custom_multipliers_are_taken_as_they_are_or_rescaled() -> None:
    custom = {
        "allocation": "custom",
        "noise_multipliers": (("fc1", 2.0), ("*", 4.0)),
        **CONSTRAINED,
    }
    names = [group.name for group in analysed(**CONSTRAINED).groups]
    weights = [2.0 if name == "fc1" else 4.0 for name in names]
    analysis = analysed(**custom)
    ratios = [group.noise_std / group.sensitivity for group in analysis.groups]
    assert ratios == pytest.approx(weights, rel=1e-9)
    joint = sum(weight**-2 for weight in weights) ** -0.5
    assert analysis.assumptions.noise_multiplier == pytest.approx(joint, rel=1e-9)
    solved = analysed(target_epsilon=3.0, **RUN, **custom)
    assert solved.privacy.epsilon <= 3.0
    ratios = [
        group.noise_std / group.sensitivity / weight
        for group, weight in zip(solved.groups, weights, strict=True)
    ]
    assert max(ratios) == pytest.approx(min(ratios), rel=1e-9)
    with pytest.raises(UsageError, match="no entry for group"):
        analysed(**custom | {"noise_multipliers": (("nothing", 1.0),)})


@pytest.mark.parametrize(
    "changes", [{"allocation": "custom"}, {"noise_multipliers": (("*", 1.0),)}]
)
def test_custom_needs_the_table_and_the_table_custom(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="custom"):
        Settings(**changes)
