"""Ops that are bounded on a part of the line: imported always, bounded where the box allows."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from lipcert.analysis.pipeline import analyze
from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import model, saved, weights

node = helper.make_node
SHAPE = ("N", 4, 5)


def imported(tmp_path, nodes, tensors=None, shape=SHAPE, opset=17):
    found = load_model(saved(model(nodes, shape, tensors, opset=opset), tmp_path), trusted=True)
    assert found.verification.max_difference < 1e-4
    return found


def lipschitz(found, low, high):
    analysis = analyze(found, Settings(input_box=(low, high)))
    reasons = [item.message + item.remedy for item in analysis.diagnostics if item.code == "LC101"]
    return analysis.network.lipschitz, reasons


@pytest.mark.parametrize(
    ("kind", "safe", "slope", "unsafe"),
    [
        ("Log", (0.5, 2.0), 2.0, (0.0, 1.0)),
        ("Sqrt", (0.25, 4.0), 1.0, (-1.0, 1.0)),
        ("Reciprocal", (0.5, 2.0), 4.0, (-1.0, 1.0)),
        ("Exp", (0.0, 1.0), np.e, (0.0, 800.0)),
    ],
)
def test_unary(tmp_path, kind, safe, slope, unsafe):
    found = imported(tmp_path, [node(kind, ["x"], ["y"])])
    assert lipschitz(found, *safe)[0] == pytest.approx(slope, rel=1e-9)
    value, reasons = lipschitz(found, *unsafe)
    assert value is None
    words = "range of float64" if kind == "Exp" else f"{kind.lower()} needs"
    remedy = "input domain" if kind == "Exp" else "--input-box"
    assert any(words in reason and remedy in reason for reason in reasons)


@pytest.mark.parametrize("exponent", [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0])
def test_power(tmp_path, exponent):
    tensors = {"p": np.array(exponent, np.float32)}
    found = imported(tmp_path, [node("Pow", ["x", "p"], ["y"])], tensors)
    expected = max(abs(exponent * x ** (exponent - 1)) for x in (0.5, 2.0))
    assert lipschitz(found, 0.5, 2.0)[0] == pytest.approx(expected, rel=1e-9)


def test_power_of_a_constant(tmp_path):
    tensors = {"b": np.array(2.0, np.float32)}
    found = imported(tmp_path, [node("Pow", ["b", "x"], ["y"])], tensors)
    assert lipschitz(found, 0.0, 3.0)[0] == pytest.approx(8 * np.log(2))


def test_power_of_two_values_is_refused(tmp_path):
    nodes = [node("Abs", ["x"], ["a"]), node("Pow", ["a", "x"], ["y"])]
    with pytest.raises(UnsupportedModelError, match=r"LC028.*Pow"):
        imported(tmp_path, nodes)


def test_a_square_is_not_negative(tmp_path):
    """x·x + 1 stays away from 0, so its root and its inverse are bounded on any box."""
    nodes = [
        node("Mul", ["x", "x"], ["s"]),
        node("Add", ["s", "one"], ["t"]),
        node("Sqrt", ["t"], ["r"]),
        node("Div", ["x", "r"], ["y"]),
    ]
    found = imported(tmp_path, nodes, {"one": np.array(1.0, np.float32)})
    assert lipschitz(found, -3.0, 3.0)[0] is not None


def test_division_of_a_constant_by_data(tmp_path):
    found = imported(tmp_path, [node("Div", ["c", "x"], ["y"])], {"c": weights(4, 1)})
    assert set(found.graph.parameters) == {"c"}
    assert lipschitz(found, 1.0, 2.0)[0] is not None
    assert lipschitz(found, 0.0, 2.0)[0] is None


def test_softmax_by_hand(tmp_path):
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("ReduceSum", ["e"], ["s"], axes=[2], keepdims=1),
        node("Div", ["e", "s"], ["y"]),
    ]
    found = imported(tmp_path, nodes, opset=11)
    assert lipschitz(found, -1.0, 1.0)[0] is not None


@pytest.mark.parametrize("kind", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("axes", [[1], [-1], [1, 2]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(tmp_path, kind, axes, keepdims):
    found = imported(tmp_path, [node(kind, ["x"], ["y"], axes=axes, keepdims=keepdims)])
    value, _ = lipschitz(found, 0.5, 1.0)
    count = np.prod([(0, 4, 5)[axis] for axis in axes])
    if kind == "ReduceL1":
        assert value == pytest.approx(np.sqrt(count))
    elif kind != "ReduceLogSum":
        assert value == 1.0


@pytest.mark.parametrize("axes", [None, [2]])
def test_reductions_with_axes_input(tmp_path, axes):
    tensors = {"a": np.array([2])}
    inputs = ["x", "a"] if axes else ["x"]
    found_nodes = [node("ReduceL2", inputs, ["y"], noop_with_empty_axes=0 if axes else 1)]
    found = imported(tmp_path, found_nodes, tensors if axes else {}, opset=18)
    assert lipschitz(found, -1.0, 1.0)[0] == 1.0


@pytest.mark.parametrize(("size", "bias"), [(1, 1.0), (3, 2.0), (5, 1.0)])
def test_local_response_normalization(tmp_path, size, bias):
    op = node("LRN", ["x"], ["y"], size=size, alpha=0.5, beta=0.6, bias=bias)
    found = imported(tmp_path, [op], shape=("N", 5, 3, 2))
    assert lipschitz(found, -1.0, 1.0)[0] < 5.0
