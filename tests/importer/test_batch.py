"""Independence of examples: proved, assumed or refused, and never wrongly proved."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from lipcert.errors import UnsupportedModelError
from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node


def test_merged_batch_axis_is_understood(tmp_path):
    """Tokens of all examples on one axis, as some exporters write a linear layer."""
    nodes = [
        node("Reshape", ["x", "flat"], ["f"]),
        node("Gemm", ["f", "w"], ["g"], transB=1),
        node("Reshape", ["g", "back"], ["y"]),
    ]
    tensors = {"flat": np.array([-1, 4]), "back": np.array([-1, 5, 3]), "w": weights(3, 4)}
    imported = load_model(saved(model(nodes, ("N", 5, 4), tensors), tmp_path))
    assert imported.batch.status is BatchStatus.PROVED
    assert imported.graph.output_shape == (5, 3)


def test_hard_coded_batch_is_an_assumption(tmp_path):
    nodes = [node("Reshape", ["x", "r"], ["f"]), node("Gemm", ["f", "w"], ["y"])]
    tensors = {"r": np.array([1, 20]), "w": weights(20, 3)}
    imported = load_model(saved(model(nodes, (1, 5, 4), tensors), tmp_path))
    assert imported.batch.status is BatchStatus.PER_EXAMPLE
    assert {item.code for item in imported.diagnostics} == {"LC021"}


def test_hard_coded_batch_does_not_hide_mixing(tmp_path):
    nodes = [
        node("Reshape", ["x", "r"], ["f"]),
        node("Gemm", ["f", "w"], ["g"]),
        node("ReduceMean", ["g"], ["m"], axes=[0]),
        node("Sub", ["g", "m"], ["y"]),
    ]
    tensors = {"r": np.array([1, 20]), "w": weights(20, 3)}
    with pytest.raises(UnsupportedModelError, match="LC007"):
        load_model(saved(model(nodes, (1, 5, 4), tensors), tmp_path))


def test_fixed_batch_above_one_is_noted(tmp_path):
    proto = model([node("MatMul", ["x", "w"], ["y"])], (8, 4), {"w": weights(4, 3)})
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.graph.input_shape == (4,)
    assert {item.code for item in imported.diagnostics} == {"LC022"}


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
