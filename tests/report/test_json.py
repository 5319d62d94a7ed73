"""The JSON of version 1: numbers in full, nothing that JSON cannot say, and read back as it was.

Its names and types are those of `tests/golden`.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.analysis.pipeline import analyze
from lipcert.analysis.records import Analysis
from lipcert.diagnostics import CODES as DIAGNOSTIC_CODES
from lipcert.diagnostics import Diagnostic, Level
from lipcert.importer.load import load_model
from lipcert.privacy.account import Account, account_for
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.report.analysis import analysis_json
from lipcert.report.inspection import inspection_json
from lipcert.report.json import error_json
from lipcert.report.sources import read_analysis
from lipcert.settings.settings import Settings
from tests.core.generated import SCALARS, values_of
from tests.report.samples import refused, sample

MODELS = Path(__file__).parents[2] / "models"

QUICK_MECHANISM = Settings(mechanism="gradient-clipping", clip_norm=1.0)


def test_numbers_keep_full_precision_and_no_bound_is_null() -> None:
    found = json.loads(analysis_json(sample()))
    assert found["network"]["loss_cotangent_norm"] == 1.4142135623730954
    assert found["nodes"][1]["output_norm"] is None
    assert found["nodes"][1]["input_lipschitz"] == [None]
    assert found["nodes"][1]["reason"]


@pytest.mark.parametrize(
    ("reached", "attained"), [(None, None), (20.1, False), (40.2, True), (40.2 * (1 - 2e-6), False)]
)
def test_attained_bounds(reached: float | None, attained: bool | None) -> None:
    network = replace(sample().network, grad_norm_witness=reached)
    found = json.loads(analysis_json(replace(sample(), network=network)))["network"]
    assert found["attained"] is attained
    assert found["grad_norm_witness"] == reached


@pytest.mark.parametrize("settings", [Settings(tier="quick"), QUICK_MECHANISM])
def test_no_witness_is_searched(settings: Settings) -> None:
    network = analyze(load_model(MODELS / "digits_mlp.onnx"), settings).network
    assert network.attained is None
    assert network.grad_norm_witness is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_an_error(value: float) -> None:
    analysis = sample()
    broken = replace(analysis, network=replace(analysis.network, lipschitz=value))
    with pytest.raises(ValueError, match="JSON"):
        analysis_json(broken)


def test_a_refused_model_lists_every_reason() -> None:
    found = json.loads(inspection_json(refused()))
    assert [reason["code"] for reason in found["unsupported"]] == ["LC004", "LC003"]
    assert (found["batch"], found["verification"]) == (None, None)
    assert found["outline"].keys() == {"inputs", "outputs", "ops", "tensors", "numbers"}


def test_error_object() -> None:
    found = json.loads(error_json(3, "[LC001] m.onnx: no", refused().refusals))
    assert (found["schema"], found["exit"]) == ("lipcert.error/1", 3)
    assert (found["code"], found["message"]) == ("LC001", "[LC001] m.onnx: no")
    assert json.loads(error_json(2, "no such option"))["code"] == ""


CODES = st.sampled_from(["LC003", "LC100", "LC301"]).filter(DIAGNOSTIC_CODES.__contains__)
PLAN = TrainingPlan(1000, Sampling.SHUFFLE, 1e-5, 100, 20, neighbours=Neighbouring.REPLACE_ONE)


@cache
def account(noise_multiplier: float) -> Account:
    return account_for(PLAN, noise_multiplier)


GIVEN = {
    **SCALARS,
    Account: st.sampled_from((2.0, 0.02)).map(account),
    str | float: SCALARS[str] | SCALARS[float],
    Diagnostic: st.builds(Diagnostic, CODES, st.sampled_from(Level), *[SCALARS[str]] * 3),
}


@given(values_of(Analysis, GIVEN))
def test_every_analysis_is_read_back(analysis: Analysis) -> None:
    assert read_analysis(json.loads(analysis_json(analysis))) == analysis
