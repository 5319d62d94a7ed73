"""Operator sets before 7: the inference forms that they have, compared at set 7."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from lipcert.errors import UnsupportedModelError
from lipcert.importer.load import load_model
from lipcert.importer.modern import modernise
from tests.importer.models import model, saved, weights

node = helper.make_node
STATISTICS = {"s": weights(4), "b": weights(4), "m": weights(4), "v": np.abs(weights(4)) + 0.5}
OLD = {
    6: {"is_test": 1},
    1: {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]},
}


@pytest.mark.parametrize("opset", OLD)
def test_batch_normalization_in_its_old_inference_form(tmp_path, opset):
    op = node("BatchNormalization", ["x", *STATISTICS], ["y"], epsilon=1e-3, **OLD[opset])
    imported = load_model(saved(model([op], ("N", 4, 3), STATISTICS, opset=opset), tmp_path))
    assert set(imported.graph.parameters) == {"s", "b"}
    new = node("BatchNormalization", ["x", *STATISTICS], ["y"], epsilon=1e-3)
    expected = load_model(saved(model([new], ("N", 4, 3), STATISTICS), tmp_path))
    kinds = [[type(item.op) for item in each.graph.nodes] for each in (imported, expected)]
    assert kinds[0] == kinds[1]


def test_batch_normalization_in_its_old_training_form(tmp_path):
    op = node("BatchNormalization", ["x", *STATISTICS], ["y"])
    with pytest.raises(UnsupportedModelError, match="LC011"):
        load_model(saved(model([op], ("N", 4, 3), STATISTICS, opset=6), tmp_path))


def test_a_whole_old_network(tmp_path):
    nodes = [
        node("Conv", ["x", "w", "c"], ["h"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["h", *STATISTICS], ["n"], is_test=1),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Dropout", ["p"], ["d"], is_test=1),
        node("Flatten", ["d"], ["f"]),
        node("Gemm", ["f", "g", "o"], ["y"], transB=1, broadcast=1),
    ]
    tensors = {"w": weights(4, 3, 3, 3), "c": weights(4), "g": weights(5, 16), "o": weights(5)}
    proto = model(nodes, ("N", 3, 4, 4), {**STATISTICS, **tensors}, opset=6)
    imported = load_model(saved(proto, tmp_path))
    assert set(imported.graph.parameters) == {"s", "b", *tensors}


def test_a_node_that_means_something_else_keeps_the_operator_set(tmp_path):
    """Add with an axis aligns its inputs otherwise than version 7 does."""
    proto = model([node("Add", ["x", "c"], ["y"], axis=0, broadcast=1)], ("N", 4), opset=6)
    modernise(proto)
    assert proto.opset_import[0].version == 6
    assert {item.name for item in proto.graph.node[0].attribute} == {"axis", "broadcast"}
