"""Operators that are spelled out in others: imported, and bounded like what they stand for."""

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
        ("equation", "shape", "weight"),
        [
            ("btd,hde->bhte", ("N", 3, 4), (2, 4, 5)),
            ("bthd,hde->bthe", ("N", 3, 2, 4), (2, 4, 5)),
            ("bthe,hed->btd", ("N", 3, 2, 4), (2, 4, 5)),
            ("...d,de->...e", ("N", 3, 4), (4, 5)),
            ("b...,...->b...", ("N", 3, 4), (3, 4)),
            ("bi,j->bij", ("N", 3), (4,)),
            ("bij,jk", ("N", 3, 4), (4, 5)),
            ("b i j, j -> b i", ("N", 3, 4), (4,)),
            ("tbd,de->bte", (3, "N", 4), None),
        ],
    )
    def test_with_a_parameter(self, tmp_path, equation, shape, weight):
        if weight is None:
            first = node("Transpose", ["x"], ["t"], perm=[1, 0, 2])
            nodes = [first, node("Einsum", ["t", "w"], ["y"], equation=equation)]
            graph = imported(tmp_path, nodes, ("N", 3, 4), {"w": weights(4, 5)}).graph
        else:
            nodes = [node("Einsum", ["x", "w"], ["y"], equation=equation)]
            graph = imported(tmp_path, nodes, shape, {"w": weights(*weight)}).graph
        assert list(graph.parameters) == ["w"]
        assert not graph.parameters["w"].folded

    def test_the_parameter_may_come_first(self, tmp_path):
        nodes = [node("Einsum", ["w", "x"], ["y"], equation="ij,bj->bi")]
        assert kinds(tmp_path, nodes, ("N", 4), {"w": weights(3, 4)})[-1] == "Gemm"

    @pytest.mark.parametrize(
        ("equation", "kind"),
        [
            ("bhte,bhse->bhts", "MatMul"),
            ("bhte,bhse->bht", "MatMul"),
            ("bhte,bhte->bhte", "Mul"),
            ("bhte,bhte,bhte->bh", "Mul"),
        ],
    )
    def test_of_two_values(self, tmp_path, equation, kind):
        names = ["x"] * (equation.count(",") + 1)
        nodes = [node("Einsum", names, ["y"], equation=equation)]
        assert {kind, "Mul", "Power"} & set(kinds(tmp_path, nodes, ("N", 2, 3, 4)))

    def test_of_one_value(self, tmp_path):
        nodes = [node("Einsum", ["x"], ["y"], equation="bij->bj")]
        assert kinds(tmp_path, nodes, ("N", 3, 4))[0] == "ReduceSum"

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

    @pytest.mark.parametrize(
        ("widths", "heads", "changes"),
        [
            ((4, 2, 2), (2, 1), {}),
            ((4, 2, 2), (2, 1), {"is_causal": 1}),
            ((4, 2, 2), (2, 1), {"softcap": 2.0}),
            ((2, 2, 4), (1, 1), {"scale": 0.3}),
            ((2, 2, 4), (1, 1), {"is_causal": 1, "scale": 0.7}),
        ],
    )
    def test_three_axes(self, tmp_path, widths, heads, changes):
        nodes, tensors = self.cut(widths)
        attributes = {"q_num_heads": heads[0], "kv_num_heads": heads[1], **changes}
        nodes.append(node("Attention", ["q", "k", "v"], ["y"], **attributes))
        found = kinds(tmp_path, nodes, self.SHAPE, tensors, opset=23)
        assert ("Attention" in found) == ("softcap" not in changes)

    @pytest.mark.parametrize("dtype", [bool, np.float32])
    def test_masks(self, tmp_path, dtype):
        nodes, tensors = self.cut((2, 2, 4))
        seen = np.tril(np.ones((3, 3), bool))
        mask = seen if dtype is bool else np.where(seen, 0.5, -np.inf).astype(np.float32)
        nodes.append(node("Attention", ["q", "k", "v", "m"], ["y"], q_num_heads=1, kv_num_heads=1))
        assert "Attention" in kinds(tmp_path, nodes, self.SHAPE, {**tensors, "m": mask}, opset=23)

    def test_a_mask_that_depends_on_data(self, tmp_path):
        nodes, tensors = self.cut((2, 2, 4))
        nodes += [
            node("Transpose", ["q"], ["qt"], perm=[0, 2, 1]),
            node("MatMul", ["q", "qt"], ["m"]),
            node("Attention", ["q", "k", "v", "m"], ["y"], q_num_heads=1, kv_num_heads=1),
        ]
        assert "depends on the data" in code(tmp_path, nodes, self.SHAPE, tensors, opset=23)[2]


class TestNormalizations:
    def test_lp(self, tmp_path):
        for order in (1, 2):
            nodes = [node("LpNormalization", ["x"], ["y"], p=order, axis=1)]
            assert kinds(tmp_path, nodes, ("N", 5)) == [f"ReduceL{order}", "Div"]
        mixing = [node("LpNormalization", ["x"], ["y"], axis=0)]
        assert code(tmp_path, mixing, ("N", 5))[0] == "LC007"

    def test_mean_variance(self, tmp_path):
        own = [node("MeanVarianceNormalization", ["x"], ["y"], axes=[2, 3])]
        assert "ReduceL2" in kinds(tmp_path, own, ("N", 2, 3, 3))
        mixing = [node("MeanVarianceNormalization", ["x"], ["y"])]
        assert code(tmp_path, mixing, ("N", 2, 3, 3))[0] == "LC007"


class TestSelections:
    def test_gather_elements(self, tmp_path):
        places = np.array([[[0, 2, 1]], [[-1, 0, 0]]]).transpose(1, 0, 2)  # [1, 2, 3]
        expand = [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Concat", ["n", "rest"], ["shape"], axis=0),
            node("Expand", ["i", "shape"], ["places"]),
            node("GatherElements", ["x", "places"], ["y"], axis=1),
        ]
        tensors = {"i": places, "zero": np.array([0]), "rest": np.array([2, 3])}
        assert kinds(tmp_path, expand, ("N", 4, 3), tensors) == ["Move"]

    def test_gather_nd(self, tmp_path):
        turned = node("Transpose", ["x"], ["t"], perm=[1, 2, 0])
        nodes = [turned, node("GatherND", ["t", "i"], ["g"]), node("Transpose", ["g"], ["y"])]
        places = np.array([[0, 1], [2, -1], [0, 1]])
        graph = imported(tmp_path, nodes, ("N", 3, 4), {"i": places}).graph
        assert graph.output_shape == (3,)
        whole = [node("GatherND", ["x", "i"], ["y"])]
        assert code(tmp_path, whole, ("N", 3, 4), {"i": places})[0] == "LC007"


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("size", [3, 5, 11])
def test_resize_with_antialias(tmp_path, exclude, size):
    how = {"mode": "linear", "antialias": 1, "exclude_outside": exclude, "axes": [2]}
    resize = node("Resize", ["x", "", "", "s"], ["y"], **how)
    graph = imported(tmp_path, [resize], ("N", 1, 8, 2), {"s": np.array([size])}, opset=18).graph
    assert graph.output_shape == (1, size, 2)


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
