"""The inputs on which a graph is compared with onnxruntime: some lie in the declared domain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from lipcert.errors import UnsupportedModelError
from lipcert.importer import patterns
from lipcert.importer.draws import NOWHERE, Domain, draws
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node
ENDS = st.floats(-3.0, 3.0)


@settings(max_examples=60, deadline=None)
@given(
    first=ENDS,
    second=ENDS,
    room=st.floats(0.0, 4.0),
    boxed=st.booleans(),
    balled=st.booleans(),
    shape=st.sampled_from([(), (1,), (3,), (2, 4)]),
)
def test_examples_of_a_domain_lie_in_it(first, second, room, boxed, balled, shape):
    low, high = sorted((first, second))
    size = int(np.prod(shape))
    least = max(0.0, low, -high) * size**0.5 if boxed else 0.0
    domain = Domain(least + room if balled else None, (low, high) if boxed else None)
    found = domain.draw((5, *shape), np.random.default_rng(1))
    assert found.shape == (5, *shape)
    if boxed:
        assert np.all(found >= low - 1e-12)
        assert np.all(found <= high + 1e-12)
    if balled:
        assert np.all(
            np.linalg.norm(found.reshape(5, -1), axis=1) <= (least + room) * (1 + 1e-9) + 1e-100
        )


def test_the_longest_example_of_a_ball_is_drawn():
    found = Domain(2.5).draw((3, 4), np.random.default_rng(1))
    assert np.linalg.norm(found[0]) == pytest.approx(2.5)


def test_without_a_domain_nothing_else_is_drawn():
    assert [declared for _, declared in draws((3, 2), NOWHERE)] == [False, False]
    assert [declared for _, declared in draws((3, 2), Domain(1.0))] == [False, False, True]


def far_gate():
    """x·g(x) that is told from SiLU only far from where ordinary inputs lie."""
    return [
        node("Constant", [], ["limit"], value_float=30.0),
        node("Constant", [], ["half"], value_float=0.5),
        node("Min", ["x", "limit"], ["m"]),
        node("Mul", ["m", "half"], ["z"]),
        node("MatMul", ["z", "w"], ["y"]),
    ]


def test_a_graph_that_differs_in_the_domain_alone_is_refused(tmp_path, monkeypatch):
    """A pattern that takes min(x, 30)/2 for x/2 is found out where the domain reaches further."""

    def careless(matcher, found):
        if found.op_type != "Mul" or matcher.producer(found.inputs[0], "Min") is None:
            return None
        inner = matcher.producer(found.inputs[0], "Min")
        return matcher.macro(found, "Mul", (inner.inputs[0], found.inputs[1]), {})

    monkeypatch.setattr(patterns, "_PATTERNS", (careless,))
    path = saved(model(far_gate(), ("N", 3), {"w": weights(3, 2)}), tmp_path)
    assert load_model(path, trusted=True).graph.nodes
    assert load_model(path, trusted=True, input_box=(0.0, 1.0)).graph.nodes
    with pytest.raises(UnsupportedModelError, match="LC013"):
        load_model(path, trusted=True, input_box=(0.0, 100.0))
    with pytest.raises(UnsupportedModelError, match="LC013"):
        load_model(path, trusted=True, input_norm=1000.0)
    with pytest.raises(UnsupportedModelError, match="LC013"):
        load_model(path, input_box=(0.0, 100.0))


def test_rounding_of_what_cancels_is_no_difference(tmp_path):
    """Of sigmoid(x) − 0.8 there is nothing left at one point but the rounding of float32."""
    nodes = [
        node("Constant", [], ["c"], value_float=float(1 / (1 + np.exp(-np.float32(1.3))))),
        node("Constant", [], ["big"], value_float=1e7),
        node("Sigmoid", ["x"], ["s"]),
        node("Sub", ["s", "c"], ["d"]),
        node("Mul", ["d", "big"], ["e"]),
        node("MatMul", ["e", "w"], ["y"]),
    ]
    path = saved(model(nodes, ("N", 3), {"w": weights(3, 2)}), tmp_path)
    at = float(np.float32(1.3))
    found = load_model(path, trusted=True, input_box=(at, at))
    assert found.verification.examples == 9
