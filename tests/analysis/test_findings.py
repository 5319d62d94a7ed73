"""Every absent number has a diagnostic that says why; and what steps are called."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert import Analysis, Settings, analyze, load_model
from lipcert.analysis.findings import Why, unexplained
from lipcert.analysis.pipeline import kind_of
from lipcert.analysis.records import GroupReport, NetworkReport, ParameterReport
from lipcert.core.kinds import Concat, ReduceMax, ReduceNorm
from lipcert.core.program import Activation, Move
from lipcert.core.token_kinds import ReduceSum, Softmax
from lipcert.report.analysis import analysis_json
from tests.core.lower.cases import model

MODELS = Path(__file__).resolve().parents[2] / "models"
MLP = load_model(MODELS / "digits_mlp.onnx")
LIPSCHITZ = Why("there is none", "")


def silent(analysis: Analysis) -> list[str]:
    """The absent numbers of which no diagnostic speaks; by the JSON that users read."""
    found = json.loads(analysis_json(analysis))
    codes = {item["code"] for item in found["diagnostics"]}
    lost = [item for item in found["diagnostics"] if item["code"] == "LC102"]
    said = " ".join(f"{item['message']} {item['node']!r}" for item in lost)
    silent = []
    if found["network"]["lipschitz"] is None and not codes & {"LC101", "LC107"}:
        silent.append("lipschitz")
    for key in ("grad_norm", "sensitivity"):
        if found["network"][key] is None and "LC102" not in codes:
            silent.append(f"network {key}")
    for item in found["parameters"]:
        named = repr(item["name"]) in said
        silent += [item["name"]] * (item["trainable"] and item["grad_norm"] is None and not named)
        lost = item["trainable"] and item["sensitivity"] is None
        silent += [item["name"]] * (lost and not named)
    for item in found["groups"]:
        named = any(repr(name) in said for name in [item["name"], *item["parameters"]])
        silent += [item["name"]] * (None in (item["grad_norm"], item["sensitivity"]) and not named)
        silent += ["noise"] * (item["noise_std"] is None and "LC102" not in codes)
    for item in found["nodes"]:
        lost = None in (item["output_norm"], item["cotangent_norm"], *item["input_lipschitz"])
        silent += [item["name"]] * (lost and not item["reason"])
    return silent


@settings(max_examples=8)
@given(
    st.sampled_from([1.0, 1e100, 1e153, 1e155, 1e200, 1e250, 1e300, 1e307]),
    st.sampled_from([0.1, 1.0, 1e100, 1e300]),
    st.sampled_from(["add-remove", "replace-one"]),
    st.sampled_from(["layer", "parameter"]),
    st.sampled_from(["none", "gradient-clipping"]),
)
def test_no_number_is_absent_in_silence(size, multiplier, neighbours, group, mechanism):
    clip = {"clip_norm": size, "clip_scope": "group"} if mechanism != "none" else {}
    found = analyze(
        MLP,
        Settings(
            input_box=(0.0, size),
            noise_multiplier=multiplier,
            neighbours=neighbours,
            group=group,
            mechanism=mechanism,
            **clip,
        ),
    )
    assert silent(found) == []


def test_squares_that_overflow_are_no_reason_to_have_no_bound():
    found = analyze(MLP, Settings(input_box=(0.0, 1e200)))
    parts = [item.grad_norm for item in found.groups]
    assert max(parts) > 1e154  # whose square is no float64
    assert math.isclose(found.network.grad_norm, math.hypot(*parts))
    assert found.network.grad_norm >= math.hypot(*parts) * (1 - 1e-15)


def test_a_sum_that_overflows_is_told():
    found = analyze(
        MLP, Settings(mechanism="gradient-clipping", clip_norm=1.7e308, neighbours="replace-one")
    )
    assert found.network.sensitivity is None
    messages = [item.message for item in found.diagnostics if item.code == "LC102"]
    assert any("sensitivity exceeds the range of float64" in item for item in messages)
    assert all(item.remedy for item in found.diagnostics if item.code == "LC102")


def test_a_function_without_a_slope_is_told(tmp_path):
    """Sqrt at 0: the values have bounds, the Lipschitz constant has none; the cube has both."""
    path = tmp_path / "sqrt.onnx"
    nodes = "cube = Pow(x, n)  s = Sqrt(x)  t = Add(cube, s)  y = MatMul(t, w)"
    tensors = {"w": [[1.0, 0.5]] * 4, "n": 3.0}
    path.write_bytes(model(nodes, ["N", 4], tensors).SerializeToString())
    found = analyze(load_model(path), Settings())
    assert found.network.lipschitz is None
    assert found.network.output_norm is not None
    assert silent(found) == []
    (told,) = [item for item in found.diagnostics if "Lipschitz" in item.message]
    assert told.code == "LC101"
    assert "sqrt needs inputs away from 0" in told.message


def parameter(name: str, bound: float | None, moved: float | None) -> ParameterReport:
    return ParameterReport(name, (1,), "n", True, name, bound, moved, 1.0)


def group(name: str, bound: float | None, moved: float | None, noise: float | None) -> GroupReport:
    return GroupReport(name, (name,), 1, bound, moved, noise, None)


def network(bound: float | None, moved: float | None) -> NetworkReport:
    return NetworkReport(1.0, 1.0, 1.0, bound, moved)


@pytest.mark.parametrize(
    ("groups", "whole", "words"),
    [
        ([group("a", 1.0, 1.0, 1.0)], network(1.0, 1.0), []),
        ([group("a", None, None, None)], network(None, None), ["group 'a': the joint gradient"]),
        ([group("a", 1.0, None, None)], network(1.0, None), ["group 'a': the sensitivity"]),
        ([group("a", 1.0, 1.0, 1.0)], network(None, 1.0), ["network: the joint gradient"]),
        ([group("a", 1.0, 1.0, 1.0)], network(1.0, None), ["network: the joint sensitivity"]),
        ([group("a", 1.0, 1.0, None)], network(1.0, 1.0), ["network: the noise"]),
    ],
)
def test_each_absent_number_is_told_once(groups, whole, words):
    told = list(unexplained([parameter("a", 1.0, 1.0)], groups, whole, LIPSCHITZ, ()))
    assert len(told) == len(words)
    assert all(item.message.startswith(word) for item, word in zip(told, words, strict=True))


def test_what_is_told_of_a_parameter_is_not_told_again():
    parameters, groups = [parameter("a", None, None)], [group("a", None, None, None)]
    assert not list(unexplained(parameters, groups, network(None, None), LIPSCHITZ, ()))


@pytest.mark.parametrize(
    ("moved", "kind"),
    [
        (lambda x: x.reshape(3, 2), "Reshape"),
        (lambda x: x.T, "Permute"),
        (lambda x: x[:, ::-1], "Permute"),
        (lambda x: x[1:], "Slice"),
        (lambda x: x[:, 1:], "Slice"),
        (lambda x: x[[0, 1, 1]], "Gather"),
        (lambda x: x[[1, 0], :2], "Gather"),
        (lambda x: np.pad(x, 1, constant_values=-1), "Pad"),
        (lambda x: x[:0], "Slice"),
    ],
)
def test_a_move_is_called_by_what_it_does(moved, kind):
    x = np.arange(6).reshape(2, 3)
    assert kind_of(Move(np.ascontiguousarray(moved(x))), x.size) == kind


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (Activation("leaky_relu", (0.1,)), "LeakyRelu"),
        (ReduceSum((1,), mean=True), "ReduceMean"),
        (ReduceSum((1,), mean=False), "ReduceSum"),
        (ReduceMax((1,), minimum=True), "ReduceMin"),
        (ReduceMax((1,), minimum=False), "ReduceMax"),
        (ReduceNorm((1,), 2, 0.0), "ReduceL2"),
        (Softmax(1, logarithm=True), "LogSoftmax"),
        (Concat(1), "Concat"),
    ],
)
def test_an_operation_has_the_name_that_frameworks_give_it(op, kind):
    assert kind_of(op, 6) == kind
