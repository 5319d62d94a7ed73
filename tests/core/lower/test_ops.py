"""Single operators and their attributes, compared with onnxruntime."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, helper

from lipcert.core.lower.errors import Unsupported
from lipcert.graph.evaluate import output_of
from tests.core.lower.cases import agrees, kinds, model, node, program

RNG = np.random.default_rng(2)


def r(*shape: int):
    return RNG.standard_normal(shape)


I4 = ["N", 4, 6, 6]
CASES = {
    # name: (nodes, shape, constants, opset)
    "gemm": (
        [node("Gemm", "x w c", alpha=0.5, beta=2.0, transB=1)], ["N", 4], {"w": r(3, 4),
         "c": r(3)}, 13),
    "a part without entries": (
        [node("Slice", "x zero zero one", "none"), node("Concat", "x none x", "y", axis=1)],
        ["N", 4, 3], {"zero": [0], "one": [1]}, 13),
    "heads of every example": (
        [node("Shape", "x", "n", end=1), node("Concat", "n one", "times", axis=0),
         node("Tile", "c times", "t"), node("Reshape", "x flat", "f"), node("Add", "f t", "s"),
         node("Reshape", "s back")], ["N", 2, 3],
        {"one": [1], "c": r(2, 1), "flat": [-1, 3], "back": [-1, 2, 3]}, 15),
    "powers of constants": (
        [node("Pow", "a b", "p"), node("Mul", "x p")], ["N", 2, 3],
        {"a": np.abs(r(2, 1)), "b": [0, 3, -2]}, 15),
    "whole powers of constants": (
        [node("Pow", "a b", "p"), node("Cast", "p", "f", to=1), node("Mul", "x f")], ["N", 3],
        {"a": 3, "b": [0, 3, 2]}, 15),
    "counted ones": (
        [node("Shape", "x", "s"), node("Expand", "c s", "o"), node("CumSum", "o one", "p"),
         node("Cast", "p", "i", to=7), node("Gather", "t i", "g"), node("Mul", "x g")], ["N", 3],
        {"c": 1.0, "one": 1, "t": r(4)}, 15),
    "several images of an example": (
        [node("Reshape", "x many", "m"),
         node("Conv", "m w b", "c", strides=[2, 1], pads=[1, 0, 0, 2], group=2, dilations=[1, 2]),
         node("ConvTranspose", "c v", "t", strides=[2, 2], output_padding=[1, 0]),
         node("Reshape", "t few")], ["N", 3, 4, 5, 6],
        {"many": [-1, 4, 5, 6], "few": [-1, 3, 2, 7, 8], "w": r(4, 2, 2, 3), "b": r(4),
         "v": r(4, 2, 2, 2)}, 15),
    "the row of the first example, which each has": (
        [node("Shape", "x", "s"), node("Expand", "c s", "e"), node("Slice", "e zero one zero", "f"),
         node("Mul", "x f")], ["N", 3], {"c": r(1, 3), "zero": [0], "one": [1]}, 15),
    "slices in front of the batch": (
        [node("Transpose", "x", "t", perm=[1, 2, 0]), node("GatherND", "t i", "g", batch_dims=1),
         node("Transpose", "g", perm=[1, 0])], ["N", 2, 3], {"i": [[-1], [0]]}, 18),
    "blocks added up": (
        [node("Col2Im", "x image block", "y", strides=[2, 1], dilations=[1, 2], pads=[1, 0, 0, 1])],
        ["N", 12, 9], {"image": [6, 6], "block": [2, 3]}, 18),
    "channels written in place": (
        [node("Slice", "x zero four one two", "u"), node("Mul", "u u", "q"),
         node("Transpose", "x", "t", perm=[1, 0, 2]), node("Transpose", "q", "v", perm=[1, 0, 2]),
         node("ScatterND", "t at v", "s"), node("Transpose", "s", "y", perm=[1, 0, 2])],
        ["N", 4, 3], {"zero": [0], "four": [4], "one": [1], "two": [2], "at": [[3], [0]]}, 16),
    "a grid of whole numbers": (
        [node("Range", "start stop step", "g"), node("Less", "g two", "c"),
         node("Where", "c g two", "w"), node("Mul", "x w")], ["N", 4],
        {"start": 0.0, "stop": 4.0, "step": 1.0, "two": 2.0}, 16),
    "a matrix times a vector of constants": (
        [node("MatMul", "w v", "u"), node("MatMul", "v w", "t"), node("MatMul", "v v", "n"),
         node("Sum", "x u t n")], ["N", 4], {"w": r(4, 4), "v": r(4)}, 16),
    "rows of every example written anew": (
        [node("Shape", "x", "n", end=1), node("Squeeze", "n", "n_"), node("Range", "k0 n_ k1", "o"),
         node("Unsqueeze", "o last", "at"), node("Mul", "x x", "q"), node("ScatterND", "x at q")],
        ["N", 4, 3], {"last": [-1], "k0": 0, "k1": 1}, 16),
    "entries written into rows": (
        [node("Shape", "x", "n", end=1), node("Squeeze", "n", "n_"), node("Range", "k0 n_ k1", "o"),
         node("Unsqueeze", "o last", "p"), node("Unsqueeze", "p last", "r_"),
         node("Concat", "n two_one", "s", axis=0), node("Expand", "r_ s", "e"),
         node("Concat", "n one_two_one", "s3", axis=0), node("Unsqueeze", "e last", "e3"),
         node("Expand", "places s3", "f"), node("Squeeze", "f ax", "f2"),
         node("Concat", "e f2", "at", axis=2), node("Gather", "x turned", "g", axis=1),
         node("Mul", "g g", "q"), node("ScatterND", "x at q")],
        ["N", 4, 3], {"last": [-1], "k0": 0, "k1": 1, "two_one": [2, 1], "turned": [2, 0],
         "one_two_one": [1, 2, 1], "places": np.asarray([[[[3], [1]]]]), "ax": [1]}, 16),
    "entries written along an axis": (
        [node("Shape", "x", "n", end=1), node("Concat", "n rest", "s", axis=0),
         node("Expand", "places s", "at"), node("Slice", "x zero two one", "u"),
         node("Mul", "u u", "q"), node("ScatterElements", "x at q", axis=1)],
        ["N", 4, 3], {"rest": [2, 3], "places": np.asarray([[[3, 0, 1], [1, 2, -1]]]),
         "zero": [0], "two": [2], "one": [1]}, 16),
    "entries of constants written anew": (
        [node("ScatterElements", "c at u", "a", axis=1), node("ScatterND", "a rows v", "b"),
         node("Add", "x b")], ["N", 3, 4],
        {"c": r(3, 4), "at": [[1], [0], [3]], "u": r(3, 1), "rows": [[2]], "v": r(1, 4)},
        16),
    "constants through layers": (
        [node("Softmax", "c", "s", axis=0), node("LayerNormalization", "s g b", "l", axis=1),
         node("BatchNormalization", "l g3 b3 b3 g3", "k"), node("Conv", "x k")], ["N", 4, 5],
        {"c": r(3, 4, 2), "g": r(4, 2), "b": r(4, 2), "g3": np.abs(r(4)), "b3": r(4)}, 17),
    "matrices repeated for every example": (
        [node("Shape", "x", "n", end=1), node("Concat", "n ones", "times", axis=0),
         node("Tile", "c times", "t"), node("Reshape", "x flat", "f"), node("MatMul", "f t", "s"),
         node("Tile", "d times", "u"), node("MatMul", "u s", "v"), node("Reshape", "v back")],
        ["N", 2, 3, 4],
        {"ones": [1, 1], "c": r(2, 4, 5), "d": r(2, 1, 3), "flat": [-1, 3, 4],
         "back": [-1, 2, 1, 5]}, 15),
    "gemm data bias": ([node("Gemm", "x w x")], ["N", 4], {"w": r(4, 4)}, 13),
    "conv": (
        [node("Conv", "x w b", pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2], group=2)], I4,
         {"w": r(6, 2, 3, 2), "b": r(6)}, 11),
    "conv of every second entry": (
        [node("Conv", "x w", auto_pad="SAME_UPPER", strides=[2, 2])], I4, {"w": r(2, 4, 1, 1)}, 11),
    "transposed": (
        [node("ConvTranspose", "x w b", strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 2],
         dilations=[2, 1], group=2)], I4, {"w": r(4, 3, 3, 2), "b": r(6)}, 11),
    "transposed to a size": (
        [node("ConvTranspose", "x w", strides=[2, 3], output_shape=[11, 17])], I4,
        {"w": r(4, 3, 3, 2)}, 11),
    "average pool counting": (
        [node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
         I4, {}, 11),
    "average pool counting beyond the rim": (
        [node("AveragePool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1],
              ceil_mode=1, count_include_pad=1)],
        I4, {}, 19),
    "max pool that would begin in the padding": (
        [node("MaxPool", "x", kernel_shape=[2, 2], strides=[3, 3], pads=[1, 1, 1, 1],
              ceil_mode=1)], I4, {}, 12),
    "conv of nothing but padding": (
        [node("Conv", "x w b", pads=[3, 0, 4, 5])], I4, {"w": r(2, 4, 3, 3), "b": r(2)}, 11),
    "sum of squares": ([node("ReduceSumSquare", "x", axes=[3])], I4, {}, 13),
    "sum of squares over nothing": (
        [node("ReduceSumSquare", "x", noop_with_empty_axes=1)], I4, {}, 18),
    "larger constant": ([node("Mul", "x c")], ["N", 1, 4], {"c": r(3, 4)}, 13),
    "where of a larger constant": (
        [node("Where", "m x c")], ["N", 1, 4], {"m": np.array(True), "c": r(3, 4)}, 16),
    "where of larger infinities": (
        [node("Where", "m x c")], ["N", 1, 4], {"m": np.array(True), "c": np.full((3, 4), -np.inf)},
         16),
    "where of infinities first": (
        [node("Where", "m c x")], ["N", 1, 4], {"m": np.array([[False]]), "c": np.full((3, 4),
         -np.inf)}, 16),
    "power of a number": ([node("Pow", "c x")], I4, {"c": 1.7}, 13),
    "clip at a limit that is none": (
        [node("Constant", "", "b", value_float=float("inf")), node("Clip", "x a b")], I4,
        {"a": 0.1}, 13),
    "gelu": ([node("Gelu", "x")], I4, {}, 20),
    "gelu tanh": ([node("Gelu", "x", approximate="tanh")], I4, {}, 20),
    "constants computed": (
        [node("Mul", "w two", "v"), node("Transpose", "v", "u"), node("Sqrt", "q", "s"),
         node("Div", "u s", "t"), node("MatMul", "x t")],
        ["N", 4], {"w": r(5, 4), "two": 2.0, "q": r(5) ** 2 + 1}, 13),
}  # fmt: skip
"""what `test_reading` draws at random is not here: plain operators, and their attributes"""


@pytest.mark.parametrize("name", CASES)
def test_operator_computes_what_onnxruntime_computes(name):
    nodes, shape, constants, opset = CASES[name]
    found = agrees(model(nodes, shape, constants, opset))
    assert found.batch_proved


@pytest.mark.parametrize("opset", [11, 17])
def test_an_empty_list_of_axes_drops_every_axis_of_size_one(opset):
    if opset < 13:
        squeeze = node("Squeeze", "x")
        empty = helper.make_attribute("axes", [], attr_type=AttributeProto.INTS)
        squeeze.attribute.append(empty)
    else:
        squeeze = node("Squeeze", "x a")
    found = agrees(model([squeeze], [2, 1, 3, 1], {"a": np.zeros(0, int)}, opset))
    assert found.shapes[found.output] == (2, 3)


DEFAULTS = {
    "Celu": {}, "Elu": {}, "HardSigmoid": {}, "LeakyRelu": {}, "Selu": {}, "LRN": {"size": 3},
    "BatchNormalization": {}, "GroupNormalization": {"num_groups": 1}, "InstanceNormalization": {},
    "LayerNormalization": {}, "RMSNormalization": {},
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_number_that_a_node_leaves_out_is_the_one_that_onnx_declares(kind):
    """Which is a float32 number: an epsilon of 1e-5 is slightly smaller."""
    inputs = {"LayerNormalization": "x c", "RMSNormalization": "x c", "LRN": "x"}
    inputs |= {"InstanceNormalization": "x d d", "BatchNormalization": "x d d d d"}
    inputs |= {"GroupNormalization": "x d d"}
    declared = {
        name: item.default_value.f
        for name, item in onnx.defs.get_schema(kind, 24).attributes.items()
        if item.default_value.type == AttributeProto.FLOAT
    }
    constants = {"c": r(4), "d": np.abs(r(2))}
    x = 0.01 * r(1, 2, 3, 4)
    found = [
        output_of(program(model([item], ["N", 2, 3, 4], constants, 24)), x)
        for more in ({}, declared)
        for item in [node(kind, inputs.get(kind, "x"), **DEFAULTS[kind], **more)]
    ]
    np.testing.assert_array_equal(*found)


def test_moves_that_end_in_a_number_are_put_together():
    nodes = [node("Squeeze", "x a", "r"), node("Squeeze", "r a", "s"), node("Tanh", "s")]
    found = agrees(model(nodes, [1, 1], {"a": [0]}))
    assert kinds(found) == ["Move", "tanh"]


def test_constants_between_values_are_added():
    nodes = [node("Concat", "c x d x", axis=1)]
    found = agrees(model(nodes, [1, 2, 3], {"c": r(1, 1, 3), "d": r(1, 2, 3)}))
    assert kinds(found) == ["Move", "Move", "Shift", "Shift"] or kinds(found)[-2:] == ["Shift"] * 2
    assert [dict(step.op.offset.sources) for step in found.steps[-2:]] == [{"c": 1.0}, {"d": 1.0}]


REFUSED = {
    "unknown attribute": ([node("Relu", "x", slope=1.0)], ["N", 4], {}, 17),
    "attribute of another kind": ([node("Flatten", "x", axis=1.0)], ["N", 4], {}, 17),
    "another domain": ([node("Relu", "x", domain="com.example")], ["N", 4], {}, 17),
    "sum without broadcasting": ([node("Sum", "x c")], ["N", 4], {"c": r(1, 4)}, 7),
    "maximum without broadcasting": ([node("Max", "x c")], ["N", 4], {"c": 0.0}, 7),
    "old operator set": ([node("Relu", "x")], ["N", 4], {}, 6),
    "future operator set": ([node("Relu", "x")], ["N", 4], {}, 27),
    "step function": ([node("Sign", "x")], ["N", 4], {}, 17),
    "whole numbers": ([node("Cast", "x", "z", to=7), node("Cast", "z", to=1)], ["N", 4], {}, 17),
    "random": ([node("RandomNormalLike", "x")], ["N", 4], {}, 17),
    "weights from the data": ([node("Conv", "x x")], [1, 1, 3, 3], {}, 17),
    "indices from the data": (
        [node("ArgMax", "x", "i", axis=1), node("Gather", "x i", axis=1)], ["N", 4], {}, 17),
    "written twice to a place": (
        [node("ScatterND", "x at x")], [3, 4], {"at": [[0], [1], [1]]}, 17),
    "added to places": (
        [node("ScatterElements", "x at x", axis=1, reduction="add")], [1, 2],
        {"at": [[1, 0]]}, 17),
    "written into the first row of fewer examples": (
        [node("Reshape", "x rows", "two"), node("Slice", "x zero one one", "s_"),
         node("Squeeze", "s_ one", "u"), node("Shape", "u", "s"), node("Expand", "at s", "i"),
         node("ScatterElements", "two i u", "w", axis=1), node("Reshape", "w back")], ["N", 2, 3],
        {"rows": [-1, 3], "back": [-1, 2, 3], "zero": [0], "one": [1],
         "at": [[2, 0, 1]]}, 16),
    "written side by side in another order": (
        [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Reshape", "t rows", "v"),
         node("Reshape", "x rows", "u"), node("Transpose", "v", "v_", perm=[1, 0]),
         node("Transpose", "u", "u_", perm=[1, 0]), node("ScatterND", "v_ at u_", "w"),
         node("Transpose", "w", "w_", perm=[1, 0]), node("Reshape", "w_ back", "b"),
         node("Transpose", "b", "y", perm=[1, 0, 2])], ["N", 2, 3],
        {"rows": [-1, 3], "back": [2, -1, 3], "at": [[0], [1], [2]]}, 16),
    "written into other examples": (
        [node("ScatterND", "x at x")], ["N", 4], {"at": [[0]]}, 17),
    "second output": ([node("MaxPool", "x", "z y", kernel_shape=[2])], ["N", 1, 4], {}, 17),
    "no dependence": ([node("Relu", "c")], ["N", 4], {"c": r(3)}, 17),
    "symbolic size behind the batch": ([node("Relu", "x")], ["N", "C"], {}, 17),
    "division by zero": ([node("Div", "x c")], ["N", 4], {"c": 0.0}, 17),
    "transposed convolution with two sizes": (
        [node("ConvTranspose", "x w", auto_pad="VALID", output_shape=[9, 9])], I4,
        {"w": r(4, 2, 3, 3)}, 11),
    "response of an even size": ([node("LRN", "x", size=2)], I4, {}, 13),
    "infinite weight": ([node("Mul", "x c")], ["N", 1], {"c": np.inf}, 17),
    "not a number": ([node("Mul", "x c")], ["N", 1], {"c": np.nan}, 17),
    "limits in the wrong order": ([node("Clip", "x a b")], ["N", 4], {"a": 1.0, "b": 0.0}, 17),
    "resize of the batch": ([node("Resize", "x - s")], I4, {"s": [2.0, 1.0, 1.0, 1.0]}, 13),
    "resize by a size that rounding decides": (
        [node("Resize", "x - s")], ["N", 1, 1, 10], {"s": [1.0, 1.0, 1.0, 0.7]}, 13),
    "resize of a region": (
        [node("Resize", "x r s", coordinate_transformation_mode="tf_crop_and_resize")], I4,
        {"r": [0.0, 0, 0, 0, 1, 1, 1, 1], "s": [1.0, 1.0, 2.0, 1.0]}, 13),
    "resize that keeps the ratio": (
        [node("Resize", "x - - z", keep_aspect_ratio_policy="not_larger", axes=[2, 3])], I4,
        {"z": [3, 4]}, 18),
    "dilated pool of automatic padding": (
        [node("MaxPool", "x", kernel_shape=[3, 3], dilations=[1, 2], auto_pad="SAME_UPPER")], I4,
        {}, 12),
    "dilated average of automatic padding": (
        [node("AveragePool", "x", kernel_shape=[3, 3], dilations=[2, 1], auto_pad="SAME_LOWER")],
        I4, {}, 19),
    "conv that leaves entries out": (
        [node("Conv", "x w", auto_pad="SAME_UPPER", strides=[3, 1])], I4, {"w": r(2, 4, 1, 1)}, 11),
    "average that leaves entries out": (
        [node("AveragePool", "x", kernel_shape=[1, 1], auto_pad="SAME_LOWER", strides=[1, 4])],
        ["N", 1, 4, 8], {}, 11),
    "negative pads of a conv": (
        [node("Conv", "x w", pads=[-1, 0, 0, 0])], I4, {"w": r(2, 4, 3, 3)}, 11),
    "weight of other channels": ([node("Conv", "x w")], I4, {"w": r(2, 3, 3, 3)}, 11),
    "dropout in training": (
        [node("Dropout", "x p t")], ["N", 4], {"p": 0.5, "t": np.array(True)}, 13),
    "stack of weights": ([node("MatMul", "x w")], ["N", 3, 4], {"w": r(3, 4, 4)}, 13),
    "range of a length that rounding decides": (
        [node("Range", "a b c", "r"), node("ReduceSum", "r", "s", keepdims=0), node("Mul", "x s")],
        ["N", 4], {"a": -1e-30, "b": 1.0, "c": 0.5}, 17),
    "celu with no width": ([node("Celu", "x", alpha=0.0)], ["N", 4], {}, 12),
    "celu of negative width": ([node("Celu", "x", alpha=-0.5)], ["N", 4], {}, 12),
    "too large a power": ([node("Pow", "x c")], ["N", 4], {"c": 1e9}, 12),
    "minus the size of the batch": (
        [node("Shape", "x", "s", end=1), node("Mul", "s c", "n"), node("Equal", "n c", "e"),
         node("Where", "e a b", "w"), node("Mul", "x w")], ["N", 4],
        {"c": [-1], "a": [1.0], "b": [3.0]}, 17),
    "no part of the size of the batch": (
        [node("Shape", "x", "s", end=1), node("Mul", "s c", "n"), node("Equal", "n c", "e"),
         node("Where", "e a b", "w"), node("Mul", "x w")], ["N", 4],
        {"c": [0], "a": [1.0], "b": [3.0]}, 17),
    "huge": ([node("Expand", "x m")], ["N", 1, 1], {"m": [1, 2**20, 2**20]}, 13),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_exactly_is_refused(name):
    nodes, shape, constants, opset = REFUSED[name]
    with pytest.raises(Unsupported) as caught:
        program(model(nodes, shape, constants, opset))
    assert "\n" not in str(caught.value)


MODES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]


@given(st.data())
def test_resize_interpolates_as_onnxruntime_does(data):
    """Every mode, by scales and by sizes; what float32 rounds to another entry is refused."""
    mode = data.draw(st.sampled_from(["nearest", "linear", "cubic"]))
    opset = data.draw(st.sampled_from([13, 18, 19]))
    more = {"mode": mode, "coordinate_transformation_mode": data.draw(st.sampled_from(MODES[:4]))}
    if opset == 19 and data.draw(st.booleans()):
        more["coordinate_transformation_mode"] = "half_pixel_symmetric"
    if mode == "nearest":
        names = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]
        more["nearest_mode"] = data.draw(st.sampled_from(names))
    if opset >= 18 and mode != "nearest" and data.draw(st.booleans()):
        more["antialias"] = 1
        more["exclude_outside"] = data.draw(st.sampled_from([0, 1]))
    shape = ["N", 2, data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))]
    if opset >= 18:
        more["axes"] = [2, 3]
    if data.draw(st.booleans()):
        scales = [data.draw(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0])) for _ in range(2)]
        constants = {"s": scales if opset >= 18 else [1.0, 1.0, *scales]}
        nodes = [node("Resize", "x - s", **more)]
    else:
        sizes = [data.draw(st.integers(1, 9)) for _ in range(2)]
        constants = {"z": sizes if opset >= 18 else [1, 2, *sizes]}
        shape[0] = "N" if opset >= 18 else 1
        nodes = [node("Resize", "x - - z", **more)]
    try:
        agrees(model(nodes, shape, constants, opset))
    except Unsupported as error:
        assert "rounding decides" in str(error)  # noqa: PT017 (the other outcome is a comparison)


@pytest.mark.parametrize(
    ("opset", "scales", "more"),
    [
        (10, (1.0, 1.3), {"mode": "nearest"}),
        (13, (1.0, 1.3), {"mode": "linear"}),
        (13, (1.0, 1.3), {"mode": "cubic"}),
        (10, (1.0, 0.6), {"mode": "nearest"}),
        (19, (2.0, 1.3), {"mode": "cubic", "antialias": 1}),
    ],
)
def test_resize_that_onnxruntime_reads_in_its_own_way_is_refused(opset, scales, more):
    """What keeps all sizes is a copy there, of stretched cubics what keeps the size of an axis;
    opset 10 rounds up what shrinks."""
    nodes = [node("Resize", "x s" if opset == 10 else "x - s", **more)]
    shape = ["N", 2, 3, 3 if scales[1] > 1 else 5]
    with pytest.raises(Unsupported):
        program(model(nodes, shape, {"s": [1.0, 1.0, *scales]}, opset))


@pytest.mark.parametrize("lengths", [None, 2, 4, [1, 2, 3]])
def test_parts_of_a_value(lengths):
    inputs = "x" if lengths is None else "x l"
    nodes = [
        node("SplitToSequence", inputs, "s", axis=1),
        node("SequenceAt", "s one", "a"),
        node("SequenceAt", "s last", "b"),
        node("Concat", "b a", axis=1),
    ]
    constants = {"one": 0, "last": -1} | ({} if lengths is None else {"l": lengths})
    assert agrees(model(nodes, ["N", 6], constants)).batch_proved


def test_parts_of_a_batch_are_refused():
    nodes = [node("SplitToSequence", "x", "s", axis=0), node("SequenceAt", "s i")]
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", 6], {"i": 0}))
