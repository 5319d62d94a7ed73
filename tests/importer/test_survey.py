"""Every reason for a refusal in one run."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from lipcert.errors import UnsupportedModelError, UsageError
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights
from tests.importer.test_parameters import with_metadata


def codes(proto, folder, **choices):
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(saved(proto, folder), **choices)
    refusals = caught.value.refusals
    assert len(set(refusals)) == len(refusals)
    return sorted((item.code, item.op) for item in refusals)


def test_operators_behind_each_other(tmp_path):
    nodes = "a = Floor(x)  b = Det(a)  y = Tan(b)"
    found = codes(model(nodes, ("N", 4, 4)), tmp_path)
    assert found == [("LC003", "Det"), ("LC003", "Tan"), ("LC005", "Floor")]


def test_operators_beside_mixing(tmp_path):
    nodes = "m = ReduceMean<axes=[0]>(x)  f = Floor(x)  y = Add(m, f)"
    assert codes(model(nodes, ("N", 4)), tmp_path) == [("LC005", "Floor"), ("LC007", "ReduceMean")]


def test_mixing_beside_what_has_no_translation(tmp_path):
    nodes = "m = ReduceMean<axes=[0]>(x)  t, i = TopK<axis=1, sorted=0>(x, k)  y = Add(m, t)"
    found = codes(model(nodes, ("N", 4), {"k": np.array([4])}), tmp_path)
    assert found == [("LC007", "ReduceMean"), ("LC028", "TopK")]


def test_several_outputs_and_what_leads_to_them(tmp_path):
    nodes = "y = Floor(x)  z = Tan(x)"
    found = codes(model(nodes, ("N", 4), outputs=("y", "z")), tmp_path)
    assert found == [("LC003", "Tan"), ("LC005", "Floor"), ("LC012", "")]
    assert codes(model(nodes, ("N", 4), outputs=("y", "z")), tmp_path, output="z") == [
        ("LC003", "Tan")
    ]


def test_several_inputs(tmp_path):
    proto = model("a = Add(x, z)  y = Tan(a)", ("N", 4))
    proto.graph.input.append(helper.make_tensor_value_info("z", 1, ["N", 4]))
    assert codes(proto, tmp_path) == [("LC003", "Tan")]
    proto.graph.input[-1].type.tensor_type.shape.dim[0].dim_value = 3
    assert codes(proto, tmp_path) == [("LC003", "Tan"), ("LC010", "")]


def test_an_input_of_integers_in_training_mode(tmp_path):
    nodes = "f = Cast<to=1>(x)  y = Tan(f)"
    proto = model(nodes, ("N", 4), dtype=7)
    with_metadata(proto, "g: BUFFER_MUTATION target='bn.running_mean'\n")
    assert codes(proto, tmp_path) == [("LC003", "Tan"), ("LC011", "")]


def test_a_bad_tensor_and_a_bad_operator(tmp_path):
    tensors = {"w": weights(4, 4), "v": weights(4, 4)}
    for array in tensors.values():
        array[0, 0] = np.nan
    nodes = "a = MatMul(x, w)  b = MatMul(a, v)  y = Tan(b)"
    found = codes(model(nodes, ("N", 4), tensors), tmp_path)
    assert found == [("LC003", "Tan"), ("LC014", ""), ("LC014", "")]


def test_sizes_that_only_this_batch_fits_are_no_reason(tmp_path):
    """A fixed batch of one: what is told is what stands against one example."""
    tensors = {"s": np.array([2, 2])}
    nodes = "r = Reshape(x, s)  m = ReduceMean<axes=[0]>(r)  y = Tan(m)"
    assert codes(model(nodes, (1, 4), tensors), tmp_path) == [("LC003", "Tan")]


def test_names_of_stored_tensors(tmp_path):
    """A file that cannot be read is refused for that alone."""
    tensor = numpy_helper.from_array(weights(4), "w")
    proto = model("y = Tan(x)", ("N", 4))
    proto.graph.initializer.extend([tensor, tensor])
    assert codes(proto, tmp_path) == [("LC016", "")]


@pytest.mark.parametrize(
    ("op", "domain", "code"),
    [
        ("Unknown", "other", "LC003"),
        ("RandomNormalLike", "", "LC003"),
        ("QuantizeLinear", "", "LC005"),
    ],
)
@pytest.mark.parametrize("read", ["x", "w"])
def test_one_cause_has_one_code(tmp_path, op, domain, code, read):
    """Of data and of constants alike."""
    inputs = f"{read}, s" if op == "QuantizeLinear" else read
    kind = f"{domain}.{op}" if domain else op
    nodes = f"o = {kind}({inputs})  c = Cast<to=1>(o)  y = Mul(x, c)"
    tensors = {"w": weights(1, 4), "s": np.array(0.1, np.float32)}
    proto = model(nodes, ("N", 4), tensors)
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    found = {name: given for given, name in codes(proto, tmp_path)}
    assert found[op] == code


def test_which_output_is_followed(tmp_path):
    both = model("y = Relu(x)  z = Abs(x)", ("N", 4), outputs=["y", "z"])
    assert "LC012" in dict(codes(both, tmp_path))
    assert load_model(saved(both, tmp_path), output="z").graph.output_name == "z"
    for trusted in (False, True):
        with pytest.raises(UsageError, match="no output 'absent'; known: 'y', 'z'"):
            load_model(saved(both, tmp_path), output="absent", trusted=trusted)
    deep = model("y = Relu(x)  z = Abs(y)", ("N", 4), outputs=["y", "z"])
    chosen = load_model(saved(deep, tmp_path))
    assert chosen.graph.output_name == "z"
    assert [item.code for item in chosen.diagnostics] == ["LC012"]
    constant = model("s = Shape(x)  y = Cast<to=1>(s)", ("N", 4))
    assert "LC008" in dict(codes(constant, tmp_path))
