"""The JSON of version 1 has the documented names and types; they are extended, never renamed."""

import json
from dataclasses import replace
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
from lipcert.report.inspection import inspection_json, inspection_of
from lipcert.report.json import error_json
from lipcert.report.sources import read_analysis
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.core.generated import SCALARS, values_of
from tests.report.samples import inspection, refused, sample

MODELS = Path(__file__).parents[2] / "models"

QUICK_MECHANISM = Settings(mechanism="gradient-clipping", clip_norm=1.0)

BOUND = (float, type(None))
"""A number, or null for "no bound"."""
WORDS = [str]
SIZES = [int]
MODEL = {"path": str, "sha256": str, "parameters": int, "opset": dict, "producer": str}
DIAGNOSTIC = {"code": str, "level": str, "node": str, "message": str, "remedy": str}
REFUSAL = {"code": str, "node": str, "op": str, "reason": str, "remedy": str}
VALUE = {"name": str, "shape": SIZES}

ANALYSIS = {
    "schema": str,
    "model": MODEL,
    "assumptions": {
        "input_norm": float,
        "input_box": (list, type(None)),
        "loss": dict,
        "scope": str,
        "constraints": dict,
        "neighbours": str,
        "reduction": str,
        "batch_size": (int, type(None)),
        "allocation": str,
        "noise_multiplier": float,
        "mechanism": dict,
        "batch": str,
        "tier": str,
        "arithmetic": str,
        "notes": WORDS,
    },
    "nodes": [
        {
            "name": str,
            "op": str,
            "inputs": WORDS,
            "output": str,
            "shape": SIZES,
            "input_norm": BOUND,
            "output_norm": BOUND,
            "operator_norm": BOUND,
            "input_lipschitz": [BOUND],
            "cotangent_norm": BOUND,
            "rule": str,
            "reason": str,
            "remedy": str,
        }
    ],
    "parameters": [
        {
            "name": str,
            "shape": SIZES,
            "node": str,
            "trainable": bool,
            "grad_norm": BOUND,
            "sensitivity": BOUND,
            "noise_std": BOUND,
            "group": (str, type(None)),
        }
    ],
    "groups": [
        {
            "name": str,
            "parameters": WORDS,
            "dimension": int,
            "grad_norm": BOUND,
            "sensitivity": BOUND,
            "noise_std": BOUND,
            "noise_energy_share": BOUND,
        }
    ],
    "allocations": [{"name": str, "noise_energy": float, "chosen": bool}],
    "network": {
        "lipschitz": BOUND,
        "output_norm": BOUND,
        "loss_cotangent_norm": BOUND,
        "grad_norm": BOUND,
        "sensitivity": BOUND,
        "attained": (bool, type(None)),
        "grad_norm_witness": BOUND,
        "lipschitz_witness": BOUND,
    },
    "diagnostics": [DIAGNOSTIC],
    "usefulness": {
        "verdict": str,
        "sentence": str,
        "noise": BOUND,
        "clipping_noise": float,
        "noise_ratio": BOUND,
        "noise_to_signal": BOUND,
        "clipping_noise_to_signal": BOUND,
        "noise_to_signal_of_run": BOUND,
        "clipping_noise_to_signal_of_run": BOUND,
        "relative_cost": BOUND,
        "slack": BOUND,
        "groups": [{"name": str, "noise": BOUND, "noise_to_signal": BOUND}],
        "observed": {
            "source": str,
            "is_private": bool,
            "examples": int,
            "grad_norm_median": float,
            "grad_norm_max": float,
            "signal": float,
            "clipped_signal": float,
            "parameters": dict,
            "groups": [
                {
                    "name": str,
                    "grad_norm_median": float,
                    "grad_norm_max": float,
                    "signal": float,
                    "clipped_signal": float,
                }
            ],
        },
    },
}
INSPECTION = {
    "schema": str,
    "model": MODEL,
    "inputs": [VALUE],
    "outputs": [VALUE],
    "nodes": [
        {"name": str, "op": str, "inputs": WORDS, "output": str, "shape": SIZES, "parameters": dict}
    ],
    "parameters": [
        {
            "name": str,
            "shape": SIZES,
            "size": int,
            "trainable": bool,
            "folded": bool,
            "nodes": WORDS,
        }
    ],
    "macro_layers": [{"kind": str, "node": str, "nodes": WORDS}],
    "outline": type(None),
    "batch": {"status": str, "axis": int, "witness": str},
    "verification": {"examples": int, "max_difference": float},
    "unsupported": [REFUSAL],
    "diagnostics": [DIAGNOSTIC],
}
ERROR = {"schema": str, "exit": int, "code": str, "message": str, "refusals": [REFUSAL]}


MAYBE = {
    "of_norms": bool,
}
"""members that are left out where they say nothing"""


def check(found: object, schema: object, where: str = "$") -> None:
    """Exactly these keys, and values of these types."""
    if isinstance(schema, dict):
        assert isinstance(found, dict), where
        more = {key: MAYBE[key] for key in found.keys() & MAYBE.keys()}
        assert set(found) == set(schema) | set(more), where
        for key, inner in (schema | more).items():
            check(found[key], inner, f"{where}.{key}")
    elif isinstance(schema, list):
        assert isinstance(found, list), where
        for index, item in enumerate(found):
            check(item, schema[0], f"{where}[{index}]")
    else:
        kinds = schema if isinstance(schema, tuple) else (schema,)
        assert type(found) in kinds, f"{where}: {found!r}"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("digits_mlp", Settings()),
        (
            "digits_vit",
            Settings(batch_size=64, input_norm=1.0, freeze=("*bias",), group="parameter"),
        ),
        ("digits_mlp", Settings(constraint=ConstraintSpec("spectral", 1.0))),
    ],
    ids=["plain", "frozen", "unbounded"],
)
def test_analyses_have_the_documented_form(name: str, settings: Settings) -> None:
    found = json.loads(analysis_json(analyze(load_model(MODELS / f"{name}.onnx"), settings)))
    check(found, ANALYSIS)
    assert found["schema"] == "lipcert.analysis/1"
    assert found["assumptions"]["loss"]["kind"] == "cross-entropy"


def test_a_hand_made_analysis_has_the_documented_form() -> None:
    found = json.loads(analysis_json(sample()))
    check(found, ANALYSIS)
    assert found["assumptions"]["loss"] == {
        "kind": "cross-entropy",
        "temperature": 1.0,
        "reduction": "mean",
    }


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


def test_inspections_have_the_documented_form() -> None:
    for found in (inspection(), inspection_of(load_model(MODELS / "digits_mlp.onnx"))):
        document = json.loads(inspection_json(found))
        check(document, INSPECTION)
        assert document["schema"] == "lipcert.inspection/1"
        assert document["batch"]["status"] == "proved"
        assert document["unsupported"] == []


def test_a_refused_model_lists_every_reason() -> None:
    found = json.loads(inspection_json(refused()))
    assert [reason["code"] for reason in found["unsupported"]] == ["LC004", "LC003"]
    assert (found["batch"], found["verification"]) == (None, None)
    outline = {"inputs": WORDS, "outputs": WORDS, "ops": dict, "tensors": int, "numbers": int}
    nothing = {"batch": type(None), "verification": type(None)}
    check(found, {**INSPECTION, **nothing, "outline": outline})


def test_error_object() -> None:
    found = json.loads(error_json(3, "[LC001] m.onnx: no", refused().refusals))
    check(found, ERROR)
    assert (found["schema"], found["exit"]) == ("lipcert.error/1", 3)
    assert (found["code"], found["message"]) == ("LC001", "[LC001] m.onnx: no")
    assert json.loads(error_json(2, "no such option"))["code"] == ""


CODES = st.sampled_from(["LC003", "LC100", "LC301"]).filter(DIAGNOSTIC_CODES.__contains__)
PLAN = TrainingPlan(1000, Sampling.SHUFFLE, 1e-5, 100, 20, neighbours=Neighbouring.REPLACE_ONE)
GIVEN = {
    **SCALARS,
    Account: st.sampled_from([account_for(PLAN, 2.0), account_for(PLAN, 0.02)]),
    str | float: SCALARS[str] | SCALARS[float],
    Diagnostic: st.builds(Diagnostic, CODES, st.sampled_from(Level), *[SCALARS[str]] * 3),
}


@given(values_of(Analysis, GIVEN))
def test_every_analysis_is_read_back(analysis: Analysis) -> None:
    assert read_analysis(json.loads(analysis_json(analysis))) == analysis
