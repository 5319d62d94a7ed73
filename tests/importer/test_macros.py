"""Layers that exporters write in several nodes: how an import tells of them, and of −∞ in masks.

How the core puts them together is tested in `tests/core/lower/test_macros.py`.
"""

import numpy as np
import pytest
from onnx import helper

from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node


def imported(tmp_path, nodes, shape=("N", 6), tensors=None):
    return load_model(saved(model(nodes, shape, tensors), tmp_path), trusted=True)


def test_a_macro_layer_names_the_nodes_it_stands_for(tmp_path):
    nodes = [
        node("ReduceMean", ["x"], ["u"], axes=[-1]),
        node("Sub", ["x", "u"], ["c"]),
        node("Mul", ["c", "c"], ["q"]),
        node("ReduceMean", ["q"], ["v"], axes=[-1]),
        node("Add", ["v", "e"], ["t"]),
        node("Sqrt", ["t"], ["r"]),
        node("Div", ["c", "r"], ["y"]),
    ]
    found = imported(tmp_path, nodes, ("N", 4), {"e": np.float32(1e-5)})
    (macro,) = found.macros
    assert macro.kind == "LayerNormalization"
    assert macro.nodes[-1] == macro.node
    assert len(macro.nodes) == 7


def test_attention_with_a_trained_bias_is_none(tmp_path):
    nodes, _ = masked("add", weights(3, 3))
    found = imported(tmp_path, nodes, ("N", 3, 4), {"m": weights(3, 3)})
    assert set(found.graph.parameters) == {"m"}


def masked(spelling, mask):
    """softmax(x·xᵀ + mask)·x."""
    hidden = np.isneginf(mask)
    head = [node("Transpose", ["x"], ["k"], perm=[0, 2, 1]), node("MatMul", ["x", "k"], ["s"])]
    minus = node("Constant", [], ["low"], value_float=float("-inf"))
    inner = {
        "add": [node("Add", ["s", "m"], ["a"])],
        "where": [minus, node("Where", ["h", "low", "s"], ["a"])],
        "not": [minus, node("Where", ["v", "s", "low"], ["a"])],
    }
    tail = [node("Softmax", ["a"], ["p"], axis=-1), node("MatMul", ["p", "x"], ["y"])]
    used = {"add": {"m": mask}, "where": {"h": hidden}, "not": {"v": ~hidden}}
    return [*head, *inner[spelling], *tail], used[spelling]


@pytest.mark.parametrize("spelling", ["add", "where", "not"])
def test_attention_with_hidden_tokens(tmp_path, spelling):
    mask = np.where(np.tril(np.ones((3, 3))) > 0, 0.0, -np.inf).astype(np.float32)
    nodes, tensors = masked(spelling, mask)
    assert not imported(tmp_path, nodes, ("N", 3, 4), tensors).graph.parameters
    mask[1] = -np.inf
    nodes, tensors = masked(spelling, mask)
    with pytest.raises(UnsupportedModelError, match=r"LC014.*let every query see"):
        imported(tmp_path, nodes, ("N", 3, 4), tensors)


def test_infinity_outside_of_an_attention(tmp_path):
    mask = np.array([0.0, -np.inf], np.float32)
    with pytest.raises(UnsupportedModelError, match="LC014"):
        imported(tmp_path, [node("Add", ["x", "m"], ["y"])], ("N", 2), {"m": mask})
