"""Resizing, stacks of matrices, running sums and triangles, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from lipcert.errors import ModelFileError, UnsupportedModelError
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node
IMAGE = ("N", 4, 7, 6)


def check(tmp_path, nodes, tensors=None, shape=IMAGE, opset=17):
    proto = model(nodes, shape, tensors, opset=opset)
    proto.ir_version = 9
    found = load_model(saved(proto, tmp_path), trusted=True)
    assert found.verification.max_difference < 1e-4
    return found


MODES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("scales", [[1, 1, 2, 1.5], [1, 1, 0.6, 0.5]])
@pytest.mark.parametrize("coordinates", MODES)
def test_interpolation(tmp_path, scales, coordinates):
    how = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    op = node("Resize", ["x", "", "s"], ["y"], **how)
    check(tmp_path, [op], {"s": np.array(scales, np.float32)}, opset=19)


def test_cubic_interpolation_is_refused(tmp_path):
    op = node("Resize", ["x", "", "s"], ["y"], mode="cubic")
    with pytest.raises(UnsupportedModelError, match="export with linear or nearest"):
        check(tmp_path, [op], {"s": np.array([1, 1, 2, 2], np.float32)}, opset=19)


def test_interpolation_along_named_axes(tmp_path):
    op = node("Resize", ["x", "", "s"], ["y"], mode="linear", axes=[3, 2])
    check(tmp_path, [op], {"s": np.array([2, 3], np.float32)}, opset=18)


@pytest.mark.parametrize(("kind", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
def test_old_interpolation(tmp_path, kind, opset):
    scales = [1.0, 1.0, 2.0, 3.0]
    if opset == 7:
        check(tmp_path, [node(kind, ["x"], ["y"], mode="linear", scales=scales)], opset=opset)
        return
    tensors = {"s": np.array(scales, np.float32)}
    check(tmp_path, [node(kind, ["x", "s"], ["y"], mode="linear")], tensors, opset=opset)


@pytest.mark.parametrize(
    ("shape", "stack"),
    [
        (("N", 4, 7, 6), (4, 6, 5)),
        (("N", 3, 4, 7, 6), (3, 1, 6, 5)),
        (("N", 3, 4, 7, 6), (3, 4, 6, 5)),
        (("N", 3, 4, 7, 6), (1, 1, 4, 6, 5)),
    ],
)
def test_stack_of_matrices_on_the_right(tmp_path, shape, stack):
    found = check(tmp_path, [node("MatMul", ["x", "w"], ["y"])], {"w": weights(*stack)}, shape)
    assert found.graph.parameters["w"].shape == stack
    operands = [o for item in found.graph.nodes for o in item.operands.values()]
    assert [operand.gain.value for operand in operands] == [1.0]


@pytest.mark.parametrize("stack", [(4, 5, 7), (1, 4, 5, 7)])
def test_stack_of_matrices_on_the_left(tmp_path, stack):
    check(tmp_path, [node("MatMul", ["w", "x"], ["y"])], {"w": weights(*stack)})


def test_a_stack_that_enlarges(tmp_path):
    tensors = {"w": weights(3, 6, 5)}
    found = check(tmp_path, [node("MatMul", ["x", "w"], ["y"])], tensors, ("N", 1, 7, 6))
    assert found.graph.output_shape == (3, 7, 5)


@pytest.mark.parametrize("opset", [12, 17, 18])
@pytest.mark.parametrize(("sizes", "count"), [(2, 2), (3, 2), ([1, 2, 1], 3), (None, 4)])
def test_sequences_of_parts(tmp_path, opset, sizes, count):
    inputs = ["x"] if sizes is None else ["x", "s"]
    tensors = {"s": np.array(sizes)} if sizes is not None else {}
    tensors |= {f"i{k}": np.array(k if k % 2 else k - count) for k in range(count)}
    nodes = [node("SplitToSequence", inputs, ["q"], axis=1)]
    nodes += [node("SequenceAt", ["q", f"i{k}"], [f"p{k}"]) for k in range(count)]
    nodes.append(node("Concat", [f"p{k}" for k in reversed(range(count))], ["y"], axis=1))
    check(tmp_path, nodes, tensors, opset=opset)


def test_sequence_position_out_of_range(tmp_path):
    nodes = [
        node("SplitToSequence", ["x", "s"], ["q"], axis=1),
        node("SequenceAt", ["q", "i"], ["y"]),
    ]
    with pytest.raises(ModelFileError, match="LC016"):
        check(tmp_path, nodes, {"s": np.array(2), "i": np.array(7)})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [1, -1])
def test_running_sum(tmp_path, exclusive, reverse, axis):
    op = node("CumSum", ["x", "a"], ["y"], exclusive=exclusive, reverse=reverse)
    check(tmp_path, [op], {"a": np.array(axis)})


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("offset", [None, -1, 2])
def test_triangle(tmp_path, upper, offset):
    inputs = ["x"] if offset is None else ["x", "k"]
    tensors = {} if offset is None else {"k": np.array(offset)}
    check(tmp_path, [node("Trilu", inputs, ["y"], upper=upper)], tensors)


def test_weights_that_depend_on_the_data_are_refused_for_that_reason(tmp_path):
    nodes = [node("Relu", ["x"], ["m"]), node("Conv", ["x", "m"], ["y"])]
    with pytest.raises(UnsupportedModelError, match="depends on the data"):
        check(tmp_path, nodes, shape=(1, 4, 7, 6))


JUMPS = ["Shrink", "ThresholdedRelu"]


@pytest.mark.parametrize("kind", JUMPS)
def test_jumps_are_refused(tmp_path, kind):
    with pytest.raises(UnsupportedModelError, match="jumps"):
        check(tmp_path, [node(kind, ["x"], ["y"])])


@pytest.mark.parametrize("includes", [0, 1])
@pytest.mark.parametrize("opset", [10, 12, 19, 22])
def test_ceil_mode_with_a_window_in_the_padding(tmp_path, includes, opset):
    op = node(
        "AveragePool",
        ["x"],
        ["y"],
        kernel_shape=[2, 2],
        strides=[3, 3],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
        count_include_pad=includes,
    )
    check(tmp_path, [op], shape=("N", 2, 6, 9), opset=opset)


@pytest.mark.parametrize("kind", ["Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_extremes_of_values_and_constants(tmp_path, kind, count):
    nodes = [
        node("Tanh", ["x"], ["a"]),
        node("ReduceMean", ["x"], ["b"], axes=[2], keepdims=1),
        node("Sin", ["x"], ["c"]),
        node(kind, [*"abc"[:count], "w"], ["y"]),
    ]
    check(tmp_path, nodes, {"w": weights(4, 1, 1)})
