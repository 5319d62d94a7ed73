"""What one example is, where a file fixes its sizes."""

import numpy as np
import pytest

from lipcert.errors import UnsupportedModelError
from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from tests.core.lower.cases import onnx_file
from tests.importer.models import model, saved, weights

VECTORS = {
    "two products": ("h = MatMul(w, x)  r = Relu(h)  y = MatMul(v, r)",
        {"w": weights(4, 8), "v": weights(3, 4)}),
    "softmax": ("h = MatMul(w, x)  y = Softmax<axis=0>(h)", {"w": weights(4, 8)}),
    "first half": ("p = Slice(x, s, e)  y = MatMul(w, p)",
        {"w": weights(3, 4), "s": np.array([0]), "e": np.array([4])}),
    "with constants behind it": ("p = Concat<axis=0>(x, c)  y = MatMul(w, p)",
        {"w": weights(3, 10), "c": weights(2)}),
    "sum of all": ("h = MatMul(w, x)  r = Relu(h)  y = ReduceSum<keepdims=0>(r)",
        {"w": weights(4, 8)}),
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
    nodes = "v = Reshape(x, s)  h = MatMul(w, v)  y = Add(h, b)"
    tensors = {"w": weights(4, 8), "b": weights(4), "s": np.array([8])}
    imported = load_model(saved(model(nodes, (1, 8), tensors), tmp_path))
    assert set(imported.graph.parameters) == {"w", "b"}


def heads(batch):
    """Self-attention with the heads merged into the batch, by sizes that are written down."""
    nodes = """t = Transpose<perm=[1, 0, 2]>(x)  q = Reshape(t, split)
        k = Transpose<perm=[1, 2, 0]>(q)  v = Transpose<perm=[1, 0, 2]>(q)  s = MatMul(v, k)
        p = Softmax<axis=-1>(s)  o = MatMul(p, v)  b = Transpose<perm=[1, 0, 2]>(o)
        j = Reshape(b, join)  i = Transpose<perm=[1, 0, 2]>(j)  y = Add(c, i)"""
    sizes = {"split": np.array([5, 2 * batch, 3]), "join": np.array([5, batch, 6])}
    return nodes, sizes


def test_heads_merged_into_a_batch_of_one(tmp_path):
    nodes, tensors = heads(1)
    nodes = f"c = Identity(x)  {nodes}"
    imported = load_model(saved(model(nodes, (1, 5, 6), tensors), tmp_path))
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert imported.graph.input_shape == (5, 6)
    assert imported.graph.output_shape == (5, 6)


def test_a_mean_over_a_batch_of_one_is_no_function_of_one_example(tmp_path):
    """Sizes that fit one batch size only do not hide it."""
    nodes, tensors = heads(1)
    nodes = f"m = ReduceMean<axes=[0]>(x)  c = Sub(x, m)  {nodes}"
    with pytest.raises(UnsupportedModelError, match="LC007"):
        load_model(saved(model(nodes, (1, 5, 6), tensors), tmp_path))


def test_an_output_that_reads_a_later_input_alone(tmp_path):
    nodes = "y = MatMul(x, w)  q = MatMul(z, w)"
    proto = onnx_file(nodes, dict.fromkeys("xz", (1, ["N", 4])), "yq", {"w": weights(4, 3)})
    imported = load_model(saved(proto, tmp_path), output="q")
    assert imported.graph.input_name == "z"
    assert imported.graph.output_name == "q"


def test_hard_coded_batch_is_an_assumption(tmp_path):
    nodes = "f = Reshape(x, r)  y = Gemm(f, w)"
    tensors = {"r": np.array([1, 20]), "w": weights(20, 3)}
    imported = load_model(saved(model(nodes, (1, 5, 4), tensors), tmp_path))
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert {item.code for item in imported.diagnostics} == {"LC021"}


def test_a_parameter_per_example_is_no_parameter_of_one_example(tmp_path):
    proto = model("y = Add(x, b)", (8, 4), {"b": weights(8, 4)})
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert imported.graph.input_shape == (8, 4)


@pytest.mark.parametrize("shape", [("N", "T", 4), (None,), ()])
def test_unknown_shapes(tmp_path, shape):
    proto = model("y = Relu(x)", shape)
    if shape == (None,):
        proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModelError, match="LC008"):
        load_model(saved(proto, tmp_path), trusted=True)
