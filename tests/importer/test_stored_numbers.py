"""Numbers of formulas that an optimiser stored as tensors, and trained ones that look alike."""

import math

import numpy as np
import pytest
from onnx import helper

from lipcert.analysis.pipeline import analyze
from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.importer.models import model, saved, weights
from tests.importer.test_parameters import with_metadata

node = helper.make_node


def norm(centred=True, inverse=False):
    first = [node("ReduceMean", ["x"], ["m"], axes=[-1]), node("Sub", ["x", "m"], ["d"])]
    value = "d" if centred else "x"
    last = [node("Div", [value, "r"], ["n"])]
    if inverse:
        last = [node("Div", ["one", "r"], ["i"]), node("Mul", [value, "i"], ["n"])]
    nodes = [
        *(first if centred else []),
        node("Pow", [value, "two"], ["q"]),
        node("ReduceMean", ["q"], ["v"], axes=[-1]),
        node("Add", ["v", "eps"], ["e"]),
        node("Sqrt", ["e"], ["r"]),
        *last,
        node("Mul", ["n", "g"], ["y"]),
    ]
    return nodes, {"two": 2.0, "eps": 1e-5, "one": 1.0}, {"g": weights(6)}


def attention(kind):
    nodes = [
        *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["s"]),
        node(kind, ["s", "scale"], ["c"]),
        node("Softmax", ["c"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    scale = math.sqrt(6.0) if kind == "Div" else 1.0 / math.sqrt(6.0)
    return nodes, {"scale": scale}, {f"w{name}": weights(6, 6) for name in "qkv"}


def gelu():
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Div", ["a", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["p"]),
        node("Mul", ["a", "p"], ["m"]),
        node("Mul", ["m", "half"], ["y"]),
    ]
    return nodes, {"root": math.sqrt(2.0), "one": 1.0, "half": 0.5}, {"w": weights(6, 6)}


FORMULAS = {
    "LayerNormalization": norm(),
    "RMSNormalization": norm(centred=False),
    "RMSNormalization, inverse": norm(centred=False, inverse=True),
    "ScaledAttention": attention("Mul"),
    "ScaledAttention, divided": attention("Div"),
    "Gelu": gelu(),
}


def proto_of(case, shape, values=None):
    nodes, numbers, tensors = FORMULAS[case]
    numbers = {**numbers, **(values or {})}
    stored = {name: np.full(shape, number, np.float32) for name, number in numbers.items()}
    return model(nodes, ("N", 3, 6), {**tensors, **stored}, opset=13)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("case", FORMULAS)
def test_the_layer_is_found(tmp_path, case, shape):
    imported = load_model(saved(proto_of(case, shape), tmp_path))
    kind, _, spelling = case.partition(",")  # a quotient of 1 is read as one
    assert [macro.kind for macro in imported.macros] == ([] if "inverse" in spelling else [kind])
    trained = set(FORMULAS[case][2]) | ({"one", "eps"} if "inverse" in spelling else set())
    assert set(imported.graph.parameters) == trained


def test_a_scale_of_its_own_is_a_parameter(tmp_path):
    """A temperature that may be trained: not 1/√d."""
    proto = proto_of("ScaledAttention", (), {"scale": 0.7})
    imported = load_model(saved(proto, tmp_path))
    assert "scale" in imported.graph.parameters


@pytest.mark.parametrize(
    ("case", "name"), [("LayerNormalization", "eps"), ("ScaledAttention", "scale")]
)
def test_what_is_listed_as_trained_is_no_number(tmp_path, case, name):
    proto = proto_of(case, ())
    tensors = FORMULAS[case][2]
    listed = "".join(f"p_{each}: PARAMETER target='{each}'\n" for each in (name, *tensors))
    with_metadata(proto, listed)
    try:
        imported = load_model(saved(proto, tmp_path))
    except UnsupportedModelError:
        return
    assert name in imported.graph.parameters


def test_a_learned_slope_of_a_gate_stays_one(tmp_path):
    """x·sigmoid(βx) with β = 0.5, which is also a number of GELU."""
    nodes = [
        node("Mul", ["x", "beta"], ["b"]),
        node("Sigmoid", ["b"], ["s"]),
        node("Mul", ["x", "s"], ["y"]),
    ]
    proto = model(nodes, ("N", 6), {"beta": np.array(0.5, np.float32)})
    assert set(load_model(saved(proto, tmp_path)).graph.parameters) == {"beta"}


def test_limits_of_a_clip(tmp_path):
    tensors = {"low": np.array(0.0, np.float32), "high": np.array(6.0, np.float32)}
    proto = model([node("Clip", ["x", *tensors], ["y"])], ("N", 6), tensors)
    assert not load_model(saved(proto, tmp_path)).graph.parameters


@pytest.mark.parametrize("kind", ["Div", "Mul"])
@pytest.mark.parametrize("added", ["x", "m"])
@pytest.mark.parametrize("name", ["floor", "norm.floor"])
def test_a_floor_is_one_below_a_divisor(tmp_path, kind, added, name):
    nodes = [node("ReduceL2", ["x"], ["s"], axes=[1]), node("Max", ["s", name], ["m"])]
    nodes += [node(kind, ["x", "m"], ["n"]), node("Add", ["n", added], ["y"])]
    proto = model(nodes, ("N", 6), {name: np.array(1e-3, np.float32)})
    found = set(load_model(saved(proto, tmp_path)).graph.parameters)
    assert found == ({name} - {"floor"} if (kind, added) == ("Div", "x") else {name})


def test_the_sixth_of_a_hard_swish_is_no_parameter(tmp_path):
    nodes = [node("HardSwish", ["x"], ["h"]), node("Mul", ["h", "sixth"], ["y"])]
    proto = model(nodes, ("N", 6), {"sixth": np.array(1 / 6, np.float32)})
    assert not load_model(saved(proto, tmp_path)).graph.parameters


@pytest.mark.parametrize(("name", "is_trained"), [("six", False), ("gate.limit", True)])
def test_a_number_that_one_node_takes_for_fixed(tmp_path, name, is_trained):
    """The 6 of relu6(x + 3)·x/6, stored once: the limit of a Clip is no weight."""
    numbers = {"three": 3.0, "low": 0.0, name: 6.0}
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Add", ["a", "three"], ["b"]),
        node("Clip", ["b", "low", name], ["c"]),
        node("Mul", ["a", "c"], ["d"]),
        node("Div", ["d", name], ["y"]),
    ]
    stored = {key: np.array(number, np.float32) for key, number in numbers.items()}
    imported = load_model(saved(model(nodes, ("N", 6), {"w": weights(6, 6), **stored}), tmp_path))
    assert (name in imported.graph.parameters) is is_trained
    found = analyze(imported, Settings(input_box=(0.0, 1.0))).network.grad_norm
    assert (found is None) is is_trained
    assert is_trained or any(name in item.message for item in imported.diagnostics)
