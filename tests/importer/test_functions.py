"""Model-local functions and constant branches: expanded, with the same result as without."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from tests.hostile.kinds import functions
from tests.importer.models import model, saved, weights
from tests.ops import evaluate

node = helper.make_node


def output(imported, example):
    return evaluate(imported.graph, example)[imported.graph.output_name]


def test_nested_functions_are_expanded(tmp_path):
    proto = functions({"f0": ["f1", "f1"], "f1": ["Relu", "Relu", "Relu"]})
    imported = load_model(saved(proto, tmp_path))
    assert len(imported.graph.nodes) == 6
    example = np.array([[-1.0, 2.0, -3.0, 4.0]])
    np.testing.assert_array_equal(output(imported, example), np.maximum(example, 0.0))


def test_parameters_reach_the_function_body(tmp_path):
    proto = model([node("linear", ["x", "w"], ["y"], domain="f")], ("N", 4), {"w": weights(4, 3)})
    proto.opset_import.append(helper.make_opsetid("f", 1))
    body = [node("MatMul", ["a", "b"], ["c"])]
    imports = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("f", "linear", ["a", "b"], ["c"], body, imports))
    imported = load_model(saved(proto, tmp_path))
    assert list(imported.graph.parameters) == ["w"]


def test_an_unused_function_bomb_is_harmless(tmp_path):
    """What is never called is never expanded, nor counted."""
    proto = functions({f"f{i}": [f"f{i + 1}"] * 2 for i in range(31)} | {"f31": ["Relu"]})
    proto.graph.node[0].op_type = "f31"
    assert len(load_model(saved(proto, tmp_path)).graph.nodes) == 1


def branch(kind, tensor=None):
    result = helper.make_tensor_value_info("o", 1, None)
    inputs = ["x"] if tensor is None else ["x", "w"]
    stored = [] if tensor is None else [numpy_helper.from_array(tensor, "w")]
    return helper.make_graph([node(kind, inputs, ["o"])], "b", [], [result], stored)


@pytest.mark.parametrize("value", [True, False])
def test_a_constant_condition_chooses_its_branch(tmp_path, value):
    choice = node(
        "If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("MatMul", weights(4, 3))
    )
    imported = load_model(saved(model([choice], ("N", 4), {"c": np.array(value)}), tmp_path))
    example = np.array([[-1.0, 2.0, -3.0, 4.0]])
    expected = np.maximum(example, 0.0) if value else example @ weights(4, 3).astype(float)
    np.testing.assert_allclose(output(imported, example), expected, rtol=1e-12)


def test_a_computed_constant_condition(tmp_path):
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Size", ["s"], ["rank"]),
        node("Equal", ["rank", "two"], ["c"]),
        node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Round")),
    ]
    imported = load_model(saved(model(nodes, ("N", 4), {"two": np.array(2)}), tmp_path))
    assert len(imported.graph.parameters) == 0
    assert output(imported, np.array([[-1.0, 1.0, -1.0, 1.0]])).min() == 0.0


def test_many_outputs_are_sorted_out_in_one_pass(tmp_path):
    names = [f"y{i}" for i in range(2000)]
    nodes = [node("Relu", [a], [b]) for a, b in zip(["x", *names], names, strict=False)]
    imported = load_model(saved(model(nodes, ("N", 2), outputs=names), tmp_path))
    assert imported.graph.output_name == "y1999"


def test_a_function_that_reads_what_a_call_leaves_out_is_refused(tmp_path):
    """An output that nobody asks for, computed from an input that nobody gives."""
    body = [node("Relu", ["a"], ["o"]), node("Dropout", ["b"], ["u"])]
    imports = [helper.make_opsetid("", 17)]
    proto = model([node("pair", ["x", ""], ["y", ""], domain="f")], ("N", 4))
    proto.opset_import.append(helper.make_opsetid("f", 1))
    function = helper.make_function("f", "pair", ["a", "b"], ["o", "u"], body, imports)
    proto.functions.append(function)
    with pytest.raises(UnsupportedModelError, match=r"LC016.*\(Dropout\): a required input"):
        load_model(saved(proto, tmp_path))
