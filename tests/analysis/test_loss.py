"""The loss where nobody states one: what is assumed, and what is said of it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from lipcert import Settings, analyze, load_model
from lipcert.analysis.records import Analysis
from lipcert.diagnostics import Level
from lipcert.errors import UsageError
from lipcert.report.analysis import assumption_rows
from tests.core.lower.cases import model as onnx_model
from tests.core.lower.cases import node

RNG = np.random.default_rng(3)
FOUR, SIX = (RNG.standard_normal((6, n)).astype(np.float32) for n in (4, 6))


def analysis_of(
    folder: Path, steps: list[str], weight: np.ndarray = FOUR, **stated: object
) -> Analysis:
    """Of x·weight and further operators, with attributes behind a colon: "Reshape:0,2,2"."""
    tensors: dict[str, np.ndarray] = {"weight": weight}
    nodes, value = [node("MatMul", "x weight", "v")], "v"
    for index, step in enumerate(steps):
        kind, _, shape = step.partition(":")
        words = value
        if shape:
            tensors[f"shape{index}"] = np.array([int(n) for n in shape.split(",")], np.int64)
            words = f"{value} shape{index}"
        attributes: Mapping[str, int] = {"axis": -1} if "oftmax" in kind else {}
        nodes.append(node(kind, words, f"v{index}", **attributes))
        value = f"v{index}"
    nodes.append(node("Identity", value, "y"))
    path = folder / "model.onnx"
    path.write_bytes(onnx_model(nodes, ["N", 6], tensors).SerializeToString())
    return analyze(load_model(path, trusted=True), Settings(input_norm=1.0, **stated))


@pytest.mark.parametrize(
    ("steps", "weight", "kind", "doubt", "remedy"),
    [
        ([], FOUR, "cross-entropy", "", "--loss cross-entropy"),
        (["LogSoftmax"], FOUR, "nll", "", "--loss nll"),
        (["LogSoftmax", "Reshape:0,1,4"], FOUR, "nll", "", "--loss nll"),
        (["Sigmoid"], FOUR, "cross-entropy", "ends in Sigmoid", "mse, mae or huber"),
        (["Sigmoid"], FOUR[:, :1], "bce", "ends in Sigmoid", "without its Sigmoid"),
        (["Tanh"], FOUR, "cross-entropy", "ends in Tanh", "mse, mae or huber"),
        (["Softmax"], FOUR, "cross-entropy", "ends in Softmax", "without it"),
        (["Reshape:0,2,2"], FOUR, "bce", "[2, 2] is not a vector", "mse, mae or huber"),
        ([], SIX, "cross-entropy", "autoencoder", "mse, mae or huber"),
        ([], FOUR[:, :1], "bce", "", "--loss bce"),
    ],
)
def test_what_nobody_stated_is_said(
    steps: list[str], weight: np.ndarray, kind: str, doubt: str, remedy: str, tmp_path: Path
) -> None:
    analysis = analysis_of(tmp_path, steps, weight)
    assert analysis.assumptions.loss["kind"] == kind
    (said,) = (item for item in analysis.diagnostics if item.code == "LC108")
    assert said.level is Level.WARNING
    assert f"{kind} is assumed" in said.message
    assert doubt in said.message
    assert ("although" in said.message) is bool(doubt)
    assert remedy in said.remedy
    line = dict(assumption_rows(analysis))["loss"]
    assert line.startswith(f"ASSUMED, because nothing was stated: {kind}")


def test_what_was_stated_is_not_said_to_be_assumed(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, ["Sigmoid"], loss="mse", label_norm=1.0)
    assert not any(item.code == "LC108" for item in analysis.diagnostics)
    assert dict(assumption_rows(analysis))["loss"].startswith("mse")


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_nll_behind_log_softmax_is_the_cross_entropy_of_the_logits(
    scale: float, tmp_path: Path
) -> None:
    """The same function of the weights: bounds that differ by a few per cent at most."""
    weight = np.float32(scale) * FOUR
    logits = analysis_of(tmp_path, [], weight, loss="cross-entropy").network
    likelihood = analysis_of(tmp_path, ["LogSoftmax"], weight, loss="nll").network
    assert likelihood.loss_cotangent_norm == 1.0
    assert likelihood.grad_norm == pytest.approx(logits.grad_norm, rel=0.05)
    assert likelihood.grad_norm >= likelihood.grad_norm_witness
    assert likelihood.grad_norm_witness >= 0.9 * logits.grad_norm_witness


@pytest.mark.parametrize("weight", [FOUR[:, :1], FOUR])
def test_nll_needs_a_vector_of_classes(weight: np.ndarray, tmp_path: Path) -> None:
    steps = ["Reshape:-1,1,1"] if weight.shape[1] == 1 else ["Reshape:0,2,2"]
    with pytest.raises(UsageError, match="nll needs one vector of at least two class scores"):
        analysis_of(tmp_path, steps, weight, loss="nll")
