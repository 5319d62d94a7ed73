"""What one example is, where a file fixes its sizes."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from lipcert.errors import UnsupportedModelError
from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node

VECTORS = {
    "two products": (
        [node("MatMul", ["w", "x"], ["h"]), node("Relu", ["h"], ["r"]),
         node("MatMul", ["v", "r"], ["y"])],
        {"w": weights(4, 8), "v": weights(3, 4)},
    ),
    "softmax": (
        [node("MatMul", ["w", "x"], ["h"]), node("Softmax", ["h"], ["y"], axis=0)],
        {"w": weights(4, 8)},
    ),
    "first half": (
        [node("Slice", ["x", "s", "e"], ["p"]), node("MatMul", ["w", "p"], ["y"])],
        {"w": weights(3, 4), "s": np.array([0]), "e": np.array([4])},
    ),
    "with constants behind it": (
        [node("Concat", ["x", "c"], ["p"], axis=0), node("MatMul", ["w", "p"], ["y"])],
        {"w": weights(3, 10), "c": weights(2)},
    ),
    "sum of all": (
        [node("MatMul", ["w", "x"], ["h"]), node("Relu", ["h"], ["r"]),
         node("ReduceSum", ["r"], ["y"], keepdims=0)],
        {"w": weights(4, 8)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VECTORS)
def test_a_vector_is_one_example(tmp_path, case):
    """The import compares the numbers with onnxruntime."""
    nodes, tensors = VECTORS[case]
    imported = load_model(saved(model(nodes, (8,), tensors), tmp_path))
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert imported.graph.input_shape == (8,)
    assert {"w"} <= set(imported.graph.parameters)


def test_a_matrix_times_a_vector_inside_one_example(tmp_path):
    nodes = [
        node("Reshape", ["x", "s"], ["v"]),
        node("MatMul", ["w", "v"], ["h"]),
        node("Add", ["h", "b"], ["y"]),
    ]
    tensors = {"w": weights(4, 8), "b": weights(4), "s": np.array([8])}
    imported = load_model(saved(model(nodes, (1, 8), tensors), tmp_path))
    assert set(imported.graph.parameters) == {"w", "b"}


def heads(batch):
    """Self-attention with the heads merged into the batch, by sizes that are written down."""
    return [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("Reshape", ["t", "split"], ["q"]),
        node("Transpose", ["q"], ["k"], perm=[1, 2, 0]),
        node("Transpose", ["q"], ["v"], perm=[1, 0, 2]),
        node("MatMul", ["v", "k"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("Transpose", ["o"], ["b"], perm=[1, 0, 2]),
        node("Reshape", ["b", "join"], ["j"]),
        node("Transpose", ["j"], ["i"], perm=[1, 0, 2]),
        node("Add", ["x", "i"], ["y"]),
    ], {"split": np.array([5, 2 * batch, 3]), "join": np.array([5, batch, 6])}


def test_heads_merged_into_a_batch_of_one(tmp_path):
    nodes, tensors = heads(1)
    imported = load_model(saved(model(nodes, (1, 5, 6), tensors), tmp_path))
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert imported.graph.input_shape == (5, 6)
    assert imported.graph.output_shape == (5, 6)


def test_a_mean_over_a_batch_of_one_is_no_function_of_one_example(tmp_path):
    """Sizes that fit one batch size only do not hide it."""
    nodes, tensors = heads(1)
    nodes[-1] = node("Add", ["c", "i"], ["y"])
    nodes = [node("ReduceMean", ["x"], ["m"], axes=[0]), node("Sub", ["x", "m"], ["c"]), *nodes]
    with pytest.raises(UnsupportedModelError, match="LC007"):
        load_model(saved(model(nodes, (1, 5, 6), tensors), tmp_path))


def test_an_output_that_reads_a_later_input_alone(tmp_path):
    inputs = [helper.make_tensor_value_info(name, 1, ["N", 4]) for name in "xz"]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in "yq"]
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["z", "w"], ["q"])]
    tensor = numpy_helper.from_array(weights(4, 3), "w")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [tensor])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    imported = load_model(saved(proto, tmp_path), output="q")
    assert imported.graph.input_name == "z"
    assert imported.graph.output_name == "q"


def test_hard_coded_batch_is_an_assumption(tmp_path):
    nodes = [node("Reshape", ["x", "r"], ["f"]), node("Gemm", ["f", "w"], ["y"])]
    tensors = {"r": np.array([1, 20]), "w": weights(20, 3)}
    imported = load_model(saved(model(nodes, (1, 5, 4), tensors), tmp_path))
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert {item.code for item in imported.diagnostics} == {"LC021"}


def test_a_parameter_per_example_is_no_parameter_of_one_example(tmp_path):
    proto = model([node("Add", ["x", "b"], ["y"])], (8, 4), {"b": weights(8, 4)})
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert imported.graph.input_shape == (8, 4)


@pytest.mark.parametrize("shape", [("N", "T", 4), (None,), ()])
def test_unknown_shapes(tmp_path, shape):
    proto = model([node("Relu", ["x"], ["y"])], shape)
    if shape == (None,):
        proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModelError, match="LC008"):
        load_model(saved(proto, tmp_path), trusted=True)
