"""Operator sets before 7, which are refused with a remedy."""

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
def test_batch_normalization_in_its_old_inference_form_is_refused(tmp_path, opset):
    op = node("BatchNormalization", ["x", *STATISTICS], ["y"], epsilon=1e-3, **OLD[opset])
    with pytest.raises(UnsupportedModelError, match=r"LC028.*onnx\.version_converter"):
        load_model(saved(model([op], ("N", 4, 3), STATISTICS, opset=opset), tmp_path))


def test_batch_normalization_in_its_old_training_form(tmp_path):
    op = node("BatchNormalization", ["x", *STATISTICS], ["y"])
    with pytest.raises(UnsupportedModelError, match="LC011"):
        load_model(saved(model([op], ("N", 4, 3), STATISTICS, opset=6), tmp_path))


def test_a_node_that_means_something_else_keeps_the_operator_set(tmp_path):
    """Add with an axis aligns its inputs otherwise than version 7 does."""
    proto = model([node("Add", ["x", "c"], ["y"], axis=0, broadcast=1)], ("N", 4), opset=6)
    modernise(proto)
    assert proto.opset_import[0].version == 6
    assert {item.name for item in proto.graph.node[0].attribute} == {"axis", "broadcast"}
