"""The exporter's notes of calls: read as written, and followed where they have no gaps."""

import numpy as np
import pytest

from lipcert.core.reader.records import Node
from lipcert.importer.load import load_model
from lipcert.importer.nodes import FX_NODE, call_of
from tests.importer.models import model, saved, weights
from tests.importer.test_parameters import with_metadata


def noted(name, call, arguments, keywords=""):
    target = f"torch.ops.aten.{call}.default"
    return (
        f"%{name} : [num_users=1] = call_function[target={target}]"
        f"(args = ({arguments}), kwargs = {{{keywords}}})"
    )


def call(text):
    return call_of(Node("n", "Add", "", (), ("y",), {}, {FX_NODE: text}))


def test_arguments_are_cut_outside_of_brackets():
    found = call(noted("cat_1", "cat", "[%a, %b], 1"))
    assert (found.name, found.result) == ("cat", "cat_1")
    assert found.arguments == ("[%a, %b]", "1")
    assert found.tensors == ["a", "b"]


def test_sizes_are_no_tensors():
    assert call(noted("view", "view", "%x, [%sym_size_int, %mul_3]")).tensors == ["x"]


def test_keywords_are_read():
    found = call(noted("add", "add", "%x, %p_w", "alpha: %p_a"))
    assert found.keywords
    assert found.tensors == ["x", "p_w", "p_a"]


@pytest.mark.parametrize("text", ["", "%x : placeholder", "target=operator.getitem](args = (%b,))"])
def test_other_notes_are_no_calls(text):
    assert call(text) is None


SIGNATURE = (
    "x: USER_INPUT\np_w: PARAMETER target='fc.weight'\np_e: PARAMETER target='embedding.weight'\n"
    "linear: USER_OUTPUT\n"
)


def gelu_then_linear(notes):
    nodes = "r = Relu(x)  y = MatMul(r, t)"
    proto = model(nodes, ("N", 4), {"t": weights(4, 3)})
    return with_metadata(
        proto, SIGNATURE, {name: {FX_NODE: text} for name, text in notes.items() if text}
    )


@pytest.mark.parametrize(
    ("first", "argument", "is_closed"),
    [("%x", "%relu", True), ("%clone", "%relu", False), ("%x", "%add", False), (None, "%r", False)],
)
def test_a_parameter_that_no_call_reads_is_unused(tmp_path, first, argument, is_closed):
    """Unless the notes have a gap, behind which it may be."""
    notes = {
        "r": first and noted("relu", "relu", first),
        "y": noted("linear", "linear", f"{argument}, %p_w"),
    }
    imported = load_model(saved(gelu_then_linear(notes), tmp_path))
    assert imported.graph.parameters["fc.weight"].folded is not is_closed
    assert ("LC009" in {item.code for item in imported.diagnostics}) is not is_closed


@pytest.mark.parametrize("result", ["mul", "y"])
def test_the_last_call_may_have_been_left_out(tmp_path, result):
    """A product by a parameter that is 1, say; its name is then that of the value before it."""
    notes = {"r": noted("relu", "relu", "%x"), "y": noted("linear", "linear", "%relu, %p_w")}
    proto = gelu_then_linear(notes)
    for entry in proto.graph.metadata_props:
        entry.value = entry.value.replace("linear: USER_OUTPUT", f"{result}: USER_OUTPUT")
    imported = load_model(saved(proto, tmp_path))
    assert imported.graph.parameters["fc.weight"].folded
    assert "LC009" in {item.code for item in imported.diagnostics}


def test_an_output_that_is_also_read_proves_no_call(tmp_path):
    """Its own call was left out; what reads it shows the name, and not what it was computed by."""
    nodes = "mul = MatMul(x, t)  y = Relu(mul)"
    proto = model(nodes, ("N", 4), {"t": weights(4, 3)}, outputs=("mul", "y"))
    signature = SIGNATURE.replace("linear: USER", "mul: USER_OUTPUT\nrelu: USER")
    notes = {"mul": noted("linear", "linear", "%x, %p_w"), "y": noted("relu", "relu", "%mul")}
    with_metadata(proto, signature, {name: {FX_NODE: text} for name, text in notes.items()})
    imported = load_model(saved(proto, tmp_path), output="y")
    assert imported.graph.parameters["fc.weight"].folded


def tied(second):
    """One weight by its own name, and under another one behind it."""
    nodes = 'h = Gemm<transB=1>(x, "fc.weight")  y = MatMul(h, t)'
    own = weights(4, 4)
    proto = model(nodes, ("N", 4), {"fc.weight": own, "t": second(own)})
    signature = "x: USER_INPUT\np_w: PARAMETER target='fc.weight'\n"
    notes = {
        "h": {FX_NODE: noted("linear", "linear", "%x, %p_w")},
        "y": {FX_NODE: noted("linear_1", "linear", "%linear, %p_w")},
    }
    return with_metadata(proto, signature, notes)


def test_a_copy_of_a_stored_parameter_is_that_parameter(tmp_path):
    imported = load_model(saved(tied(np.transpose), tmp_path))
    operands = [item for each in imported.graph.nodes for item in each.operands.values()]
    assert [operand.parameter for operand in operands] == ["fc.weight", "fc.weight"]
    assert imported.scattered == {"fc.weight"}


def test_other_numbers_in_the_place_of_a_stored_parameter(tmp_path):
    """Its gradient is not followed there."""
    imported = load_model(saved(tied(lambda own: own.T * 2), tmp_path))
    assert imported.graph.parameters["fc.weight"].folded


@pytest.mark.parametrize("source", ["%clone", "%linear_0"])
def test_a_stored_result_of_a_call_may_come_from_a_parameter(tmp_path, source):
    """A contiguous transposed weight, say, which the file holds beside the weight."""
    proto = tied(np.transpose)
    note = next(entry for entry in proto.graph.node[1].metadata_props if entry.key == FX_NODE)
    note.value = noted("linear_1", "linear", f"%linear, {source}")
    imported = load_model(saved(proto, tmp_path))
    assert imported.graph.parameters["fc.weight"].folded


def test_a_bias_of_zeros_that_was_dropped(tmp_path):
    proto = model("y = Gemm<transB=1>(x, w)", ("N", 4), {"w": weights(3, 4)})
    signature = "x: USER_INPUT\np_w: PARAMETER target='w'\np_b: PARAMETER target='b'\n"
    note = {
        FX_NODE: noted("linear", "linear", "%x, %p_w, %p_b"),
        "pkg.onnxscript.rewriter.rule_name": "RemoveOptionalBiasFromGemm",
    }
    imported = load_model(saved(with_metadata(proto, signature, {"y": note}), tmp_path))
    assert {name: item.shape for name, item in imported.graph.parameters.items()} == {
        "w": (3, 4),
        "b": (3,),
    }
    assert not any(item.folded for item in imported.graph.parameters.values())
    assert imported.scattered == {"b"}
