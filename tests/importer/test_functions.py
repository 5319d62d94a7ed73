"""Model-local functions and constant branches: expanded, with the same result as without."""

import pytest
from onnx import helper

from lipcert.errors import ModelFileError
from lipcert.importer.load import load_model
from tests.hostile.kinds import functions
from tests.importer.models import model, saved

node = helper.make_node


def test_an_unused_function_bomb_is_harmless(tmp_path):
    """What is never called is never expanded, nor counted."""
    proto = functions({f"f{i}": [f"f{i + 1}"] * 2 for i in range(31)} | {"f31": ["Relu"]})
    proto.graph.node[0].op_type = "f31"
    assert len(load_model(saved(proto, tmp_path)).graph.nodes) == 1


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
    with pytest.raises(ModelFileError, match=r"LC016.*onnxruntime rejects it.*Dropout"):
        load_model(saved(proto, tmp_path))
