"""Steps that divide by a small floor or epsilon: named, with the number and what to do."""

import re

import numpy as np
import pytest

from lipcert.analysis.bounded import bounded
from lipcert.analysis.findings import absence_of, findings
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import model, onnx, saved, weights

node = onnx.helper.make_node
NORM = node("ReduceL2", ["h"], ["n"], axes=[1], keepdims=1)
STEEP = {
    # name: (nodes from h to s, the number below which the slope is flat, the least slope told)
    "a norm with a floor": (
        [NORM, node("Clip", ["n", "tiny"], ["d"]), node("Div", ["h", "d"], ["s"], "steep")],
        1e-9, 0.9e9),
    "a norm and an epsilon": (
        [NORM, node("Add", ["n", "tiny"], ["d"]), node("Div", ["h", "d"], ["s"], "steep")],
        1e-9, 0.9e9),
    "a sum of magnitudes": (
        [node("ReduceL1", ["h"], ["n"], axes=[1], keepdims=1), node("Add", ["n", "tiny"], ["d"]),
         node("Div", ["h", "d"], ["s"], "steep")], 1e-9, 0.9e9),
    "its own magnitude": (
        [node("Abs", ["h"], ["n"]), node("Add", ["n", "tiny"], ["d"]),
         node("Div", ["h", "d"], ["s"], "steep")], 1e-9, 0.9e9),
    "a layer normalization": (
        [node("LayerNormalization", ["h", "ones"], ["s"], "steep", epsilon=1e-9)], 1e-9, 3e4),
    "a logarithm": (
        [node("Abs", ["h"], ["n"]), node("Add", ["n", "tiny"], ["d"]),
         node("Log", ["d"], ["s"], "steep")], 1e-9, 0.9e9),
    "a root": (
        [node("Abs", ["h"], ["n"]), node("Add", ["n", "tiny"], ["d"]),
         node("Sqrt", ["d"], ["s"], "steep")], 1e-9, 1e4),
    "a reciprocal": (
        [node("Abs", ["h"], ["n"]), node("Add", ["n", "tiny"], ["d"]),
         node("Reciprocal", ["d"], ["s"], "steep")], 1e-9, 0.9e18),
}  # fmt: skip


def analysed(folder, nodes, epsilon, **settings):
    tensors = {
        "w": weights(6, 5), "v": weights(5, 3, seed=1), "ones": np.ones(5, np.float32),
        "tiny": np.array(epsilon, np.float32),
    }  # fmt: skip
    nodes = [node("MatMul", ["x", "w"], ["h"]), *nodes, node("MatMul", ["s", "v"], ["y"])]
    path = saved(model(nodes, ("N", 6), tensors), folder)
    given = {"input_norm": 1.0, "loss": "cross-entropy", "tier": "quick"} | settings
    return bounded(load_model(path, trusted=True), Settings(**given)), Settings(**given)


def told(analysis):
    found, given = analysis
    items = findings(found, absence_of(found), given)
    return [item for item in items if item.code == "LC105"]


@pytest.mark.parametrize("name", STEEP)
def test_the_step_the_number_and_the_remedy_are_named(tmp_path, name):
    nodes, epsilon, least = STEEP[name]
    (found,) = told(analysed(tmp_path, nodes, epsilon))
    assert found.node == "steep"
    slope = float(re.search(r"may stretch by (\S+?)[:,]", found.message)[1])
    assert least < slope < np.inf
    assert "epsilon" in found.remedy or "floor" in found.remedy


@pytest.mark.parametrize("name", [name for name in STEEP if "layer" not in name])
def test_an_epsilon_that_the_data_justify_is_no_finding(tmp_path, name):
    assert not told(analysed(tmp_path, STEEP[name][0], 0.5))


def test_inputs_that_stay_away_from_0_are_no_finding(tmp_path):
    """The same logarithm, of numbers of which the smallest is known."""
    nodes = [node("Exp", ["h"], ["n"]), *STEEP["a logarithm"][0][1:]]
    assert not told(analysed(tmp_path, nodes, 1e-9))
