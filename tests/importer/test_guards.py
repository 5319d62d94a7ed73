"""Step functions inside of continuous ones: recognised where exact, refused elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from tests.importer.models import model, saved

node = helper.make_node


def number(name, value):
    return node("Constant", [], [name], value_float=float(np.float32(value)))


def kinds(tmp_path, *nodes):
    path = saved(model(nodes, ("N", 6)), tmp_path)
    graph = load_model(path, trusted=True).graph
    return [type(getattr(item.op, "function", item.op)).__name__ for item in graph.nodes]


def is_refused(tmp_path, *nodes):
    with pytest.raises(UnsupportedModelError) as caught:
        kinds(tmp_path, *nodes)
    return {refusal.code for refusal in caught.value.refusals} == {"LC005"}


def choice(comparison, limit, above, below, *, swapped=False):
    """Where(x > limit, above, below), or its mirror image."""
    sides = ["t", "x"] if swapped else ["x", "t"]
    is_above = comparison.startswith("Greater") != swapped
    branches = [above, below] if is_above else [below, above]
    step = node(comparison, sides, ["c"])
    return [number("t", limit), step, node("Where", ["c", *branches], ["y"])]


COMPARISONS = ["Greater", "GreaterOrEqual", "Less", "LessOrEqual"]


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("swapped", [False, True])
def test_relu(tmp_path, comparison, swapped):
    nodes = [number("z", 0.0), *choice(comparison, 0.0, "x", "z", swapped=swapped)]
    assert kinds(tmp_path, *nodes) == ["Relu"]
    nodes = [number("z", 0.0), *choice(comparison, 0.5, "x", "z", swapped=swapped)]
    assert is_refused(tmp_path, *nodes)


def test_threshold(tmp_path):
    nodes = [number("z", 0.25), *choice("Greater", 0.25, "x", "z")]
    assert kinds(tmp_path, *nodes) == ["Clip"]
    assert is_refused(tmp_path, number("z", 0.0), *choice("Greater", 0.25, "x", "z"))


@pytest.mark.parametrize(("limit", "is_known"), [(20.0, True), (1.0, False)])
def test_softplus(tmp_path, limit, is_known):
    nodes = [
        number("b", 2.0),
        number("t", limit),
        node("Mul", ["x", "b"], ["u"]),
        node("Softplus", ["u"], ["s"]),
        node("Div", ["s", "b"], ["p"]),
        node("Greater", ["u", "t"], ["c"]),
        node("Where", ["c", "x", "p"], ["y"]),
    ]
    if is_known:
        assert "Softplus" in kinds(tmp_path, *nodes)
    else:
        assert is_refused(tmp_path, *nodes)


@pytest.mark.parametrize(("offset", "is_known"), [(0.5, True), (0.25, False)])
def test_soft_threshold(tmp_path, offset, is_known):
    nodes = [
        number("t", 0.5),
        number("o", offset),
        number("z", 0.0),
        node("Abs", ["x"], ["a"]),
        node("Greater", ["a", "t"], ["c"]),
        node("Sign", ["x"], ["s"]),
        node("Mul", ["s", "o"], ["m"]),
        node("Sub", ["x", "m"], ["d"]),
        node("Where", ["c", "d", "z"], ["y"]),
    ]
    if is_known:
        assert kinds(tmp_path, *nodes) == ["SoftThreshold"]
    else:
        assert is_refused(tmp_path, *nodes)


def test_signed_magnitude(tmp_path):
    signed = [node("Sign", ["x"], ["s"]), node("Abs", ["x"], ["a"])]
    assert kinds(tmp_path, *signed, node("Mul", ["s", "a"], ["p"]), node("Relu", ["p"], ["y"])) == [
        "Relu"
    ]
    assert is_refused(tmp_path, signed[0], node("Mul", ["s", "s"], ["y"]))


def test_a_guard_against_nan(tmp_path):
    nodes = [
        number("z", 0.0),
        node("Softmax", ["x"], ["p"]),
        node("IsNaN", ["p"], ["n"]),
        node("Where", ["n", "z", "p"], ["y"]),
    ]
    assert kinds(tmp_path, *nodes) == ["Softmax"]


def test_a_step_beside_a_guard_is_refused(tmp_path):
    nodes = [
        number("z", 0.0),
        node("Greater", ["x", "z"], ["c"]),
        node("Where", ["c", "x", "z"], ["r"]),
        node("Cast", ["c"], ["f"], to=1),
        node("Add", ["r", "f"], ["y"]),
    ]
    assert is_refused(tmp_path, *nodes)
