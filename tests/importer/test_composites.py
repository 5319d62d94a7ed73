"""Operators that are spelled out in others: refusals of an import, and the parameters it finds."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node


def imported(tmp_path, nodes, shape, tensors=None, opset=17):
    """load_model compares the graph with onnxruntime."""
    return load_model(saved(model(nodes, shape, tensors, opset=opset), tmp_path), trusted=True)


def kinds(tmp_path, nodes, shape, tensors=None, opset=17):
    return [item.kind for item in imported(tmp_path, nodes, shape, tensors, opset).graph.nodes]


def code(tmp_path, nodes, shape, tensors=None, opset=17):
    with pytest.raises(UnsupportedModelError) as caught:
        imported(tmp_path, nodes, shape, tensors, opset)
    (refusal,) = caught.value.refusals
    return refusal.code, refusal.node, refusal.reason


class TestEinsum:
    @pytest.mark.parametrize(
        ("equation", "expected"),
        [("bi,bj->ij", "LC007"), ("bi->i", "LC007"), ("bi,ci->bc", "LC007")],
    )
    def test_refusals_name_the_node(self, tmp_path, equation, expected):
        names = ["x"] * (equation.count(",") + 1)
        nodes = [node("Einsum", names, ["y"], "sum", equation=equation)]
        found = code(tmp_path, nodes, ("N", 4))
        assert found[0] == expected
        assert found[1].startswith("sum")

    @pytest.mark.parametrize("equation", ["ii->i", "bi,bj->bk"])
    def test_what_onnxruntime_rejects_too_is_no_model(self, tmp_path, equation):
        names = ["x"] * (equation.count(",") + 1)
        proto = model([node("Einsum", names, ["y"], "sum", equation=equation)], ("N", 4))
        with pytest.raises(ModelFileError, match=r"LC016.*not a valid model.*'sum' \(Einsum\)"):
            load_model(saved(proto, tmp_path))


class TestAttentionOperator:
    SHAPE = ("N", 3, 8)

    def cut(self, widths):
        """Queries, keys and values side by side in the input."""
        sizes = np.array(widths)
        return [node("Split", ["x", "sizes"], ["q", "k", "v"], axis=2)], {"sizes": sizes}

    def test_a_mask_that_depends_on_data(self, tmp_path):
        nodes, tensors = self.cut((2, 2, 4))
        nodes += [
            node("Transpose", ["q"], ["qt"], perm=[0, 2, 1]),
            node("MatMul", ["q", "qt"], ["m"]),
            node("Attention", ["q", "k", "v", "m"], ["y"], q_num_heads=1, kv_num_heads=1),
        ]
        assert "depends on the data" in code(tmp_path, nodes, self.SHAPE, tensors, opset=23)[2]


def test_a_recurrent_start_from_zero_keeps_the_parameters(tmp_path):
    nodes = [
        node("Gemm", ["h0", "w", "b"], ["h"]),
        node("MatMul", ["x", "u"], ["i"]),
        node("Add", ["i", "h"], ["a"]),
        node("Tanh", ["a"], ["h1"]),
        node("Gemm", ["h1", "w", "b"], ["y"]),
    ]
    tensors = {"h0": np.zeros((1, 3), np.float32), "w": weights(3, 3), "b": weights(3)}
    zero = node("Constant", [], ["h0"], value=helper.make_tensor("t", 1, (1, 3), [0.0] * 3))
    del tensors["h0"]
    graph = imported(tmp_path, [zero, *nodes], ("N", 2), {**tensors, "u": weights(2, 3)}).graph
    assert {name for name, item in graph.parameters.items() if not item.folded} == {"w", "b", "u"}


@pytest.mark.parametrize("rows", [2, 3])
def test_a_reshape_that_joins_examples_is_batch_mixing(tmp_path, rows):
    target = np.array([-1, rows, 5])
    found = code(tmp_path, [node("Reshape", ["x", "s"], ["y"], "fold")], ("N", 5), {"s": target})
    assert found[:2] == ("LC007", "fold")
