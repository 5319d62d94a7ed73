"""The JSON of version 1 has the documented names; they may be extended, never renamed."""

import json
from dataclasses import replace

import pytest

from lipcert.report.json import analysis_json, error_json, inspection_json
from tests.report.samples import inspection, refused, sample

NODE = {
    "name", "op", "inputs", "output", "input_norm", "output_norm", "operator_norm",
    "input_lipschitz", "cotangent_norm", "rule",
}  # fmt: skip
PARAMETER = {"name", "shape", "node", "grad_norm", "sensitivity", "noise_std", "group"}
GROUP = {"name", "parameters", "dimension", "grad_norm", "sensitivity", "noise_std"}
NETWORK = {"lipschitz", "output_norm", "loss_cotangent_norm", "grad_norm", "sensitivity"}


def test_documented_names_of_an_analysis() -> None:
    found = json.loads(analysis_json(sample()))
    assert found["schema"] == "lipcert.analysis.records/1"
    assert set(found["model"]) == {"path", "sha256", "parameters", "opset", "producer"}
    assert found["assumptions"]["loss"] == {
        "kind": "cross-entropy",
        "temperature": 1.0,
        "reduction": "mean",
    }
    assert {"input_norm", "input_box", "scope", "neighbours"} <= set(found["assumptions"])
    assert set(found["nodes"][0]) >= NODE
    assert set(found["parameters"][0]) >= PARAMETER
    assert set(found["groups"][0]) >= GROUP
    assert set(found["network"]) >= NETWORK
    assert set(found["diagnostics"][0]) >= {"code", "level", "node", "message"}
    assert "privacy" not in found


def test_numbers_keep_full_precision_and_no_bound_is_null() -> None:
    found = json.loads(analysis_json(sample()))
    assert found["network"]["loss_cotangent_norm"] == 1.4142135623730954
    assert found["nodes"][1]["output_norm"] is None
    assert found["nodes"][1]["input_lipschitz"] == [None]
    assert found["nodes"][1]["reason"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_an_error(value: float) -> None:
    analysis = sample()
    broken = replace(analysis, network=replace(analysis.network, lipschitz=value))
    with pytest.raises(ValueError, match="JSON"):
        analysis_json(broken)


def test_documented_names_of_an_inspection() -> None:
    found = json.loads(inspection_json(inspection()))
    assert found["schema"] == "lipcert.inspection/1"
    assert found["batch"] == {"status": "proved", "axis": 0, "witness": "witness conv1"}
    assert found["unsupported"] == []
    assert found["nodes"][0]["op"] == "Conv"
    assert found["parameters"][0]["size"] == 1024


def test_a_refused_model_lists_every_reason() -> None:
    found = json.loads(inspection_json(refused()))
    assert [reason["code"] for reason in found["unsupported"]] == ["LC004", "LC003"]
    assert found["batch"] is None


def test_error_object() -> None:
    found = json.loads(error_json(3, "no", refused().refusals))
    assert (found["schema"], found["exit"], found["message"]) == ("lipcert.error/1", 3, "no")
    assert set(found["refusals"][0]) == {"code", "node", "op", "reason", "remedy"}
