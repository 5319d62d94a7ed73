"""Steps that divide by a small floor or epsilon: named, with the number and what to do."""

import re

import numpy as np
import pytest

from lipcert.analysis.bounded import bounded
from lipcert.analysis.findings import absence_of, findings
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import model, saved, weights

SHIFTED = "n = Abs(h)  d = Add(n, tiny)"
STEEP = {
    # name: (nodes from h to s, the number below which the slope is flat, the least slope told)
    "a norm with a floor": (
        "n = ReduceL2<axes=[1]>(h)  d = Clip(n, tiny)  [steep] s = Div(h, d)", 1e-9, 0.9e9),
    "a norm and an epsilon": (
        "n = ReduceL2<axes=[1]>(h)  d = Add(n, tiny)  [steep] s = Div(h, d)", 1e-9, 0.9e9),
    "a sum of magnitudes": (
        "n = ReduceL1<axes=[1]>(h)  d = Add(n, tiny)  [steep] s = Div(h, d)", 1e-9, 0.9e9),
    "its own magnitude": (f"{SHIFTED}  [steep] s = Div(h, d)", 1e-9, 0.9e9),
    "a layer normalization": (
        "[steep] s = LayerNormalization<epsilon=1e-9>(h, ones)", 1e-9, 3e4),
    "a logarithm": (f"{SHIFTED}  [steep] s = Log(d)", 1e-9, 0.9e9),
    "a root": (f"{SHIFTED}  [steep] s = Sqrt(d)", 1e-9, 1e4),
    "a reciprocal": (f"{SHIFTED}  [steep] s = Reciprocal(d)", 1e-9, 0.9e18),
}  # fmt: skip


def analysed(folder, nodes, epsilon, **settings):
    tensors = {
        "w": weights(6, 5), "v": weights(5, 3, seed=1), "ones": np.ones(5, np.float32),
        "tiny": np.array(epsilon, np.float32),
    }  # fmt: skip
    nodes = f"h = MatMul(x, w)  {nodes}  y = MatMul(s, v)"
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
    nodes = STEEP["a logarithm"][0].replace("Abs", "Exp")
    assert not told(analysed(tmp_path, nodes, 1e-9))
