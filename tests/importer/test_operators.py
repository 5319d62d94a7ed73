"""Every op and attribute that the importer claims, against onnxruntime.

`load_model` itself compares the graph with onnxruntime, together and one by one, and refuses with
LC013 where they differ; so a successful import of each variant is the statement.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper

from lipcert.errors import UnsupportedModelError
from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model
from tests.importer.models import model, saved, weights

node = helper.make_node
IMAGE = ("N", 4, 7, 6)


def check(tmp_path, proto, status=BatchStatus.PROVED):
    imported = load_model(saved(proto, tmp_path), trusted=True)
    assert imported.batch.status is status
    assert imported.verification.max_difference < 1e-4
    return imported


@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv_auto_pad(tmp_path, auto_pad, stride, groups):
    conv = node(
        "Conv", ["x", "w", "b"], ["y"], group=groups, strides=[stride, 1], auto_pad=auto_pad
    )
    tensors = {"w": weights(8, 4 // groups, 3, 2), "b": weights(8)}
    imported = check(tmp_path, model([conv], IMAGE, tensors))
    assert set(imported.graph.parameters) == {"w", "b"}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_conv_pads_and_dilations(tmp_path, rank, dilation):
    pads = [2, 0, 1][:rank] + [1, 3, 0][:rank]
    conv = node("Conv", ["x", "w"], ["y"], pads=pads, dilations=[dilation] * rank)
    shape = ("N", 2, *(8, 7, 6)[:rank])
    check(tmp_path, model([conv], shape, {"w": weights(3, 2, *(3, 2, 3)[:rank])}))


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_automatic_padding_of_dilated_pools_is_refused(tmp_path, kind, auto_pad):
    """The definition of the operator pads for the dilated window, onnxruntime does not."""
    pool = node(kind, ["x"], ["y"], kernel_shape=[3, 3], dilations=[2, 2], auto_pad=auto_pad)
    with pytest.raises(UnsupportedModelError, match=r"LC003.*dilated pool.*explicit pads"):
        check(tmp_path, model([pool], IMAGE, opset=19))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_automatic_padding_that_leaves_entries_out_is_refused(tmp_path, auto_pad):
    conv = node("Conv", ["x", "w"], ["y"], strides=[1, 3], auto_pad=auto_pad)
    with pytest.raises(UnsupportedModelError, match=r"LC003.*leave entries out.*explicit pads"):
        check(tmp_path, model([conv], IMAGE, {"w": weights(2, 4, 1, 1)}))


CONV_TRANSPOSE = [
    {},
    {"strides": [2, 3]},
    {"strides": [2, 2], "pads": [1, 0, 1, 1]},
    {"strides": [2, 3], "output_padding": [1, 2]},
    {"strides": [2, 2], "output_shape": [14, 12]},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    {"strides": [2, 1], "auto_pad": "VALID", "dilations": [2, 2]},
]


@pytest.mark.parametrize("attributes", CONV_TRANSPOSE, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose(tmp_path, attributes, groups):
    op = node("ConvTranspose", ["x", "w", "b"], ["y"], group=groups, **attributes)
    tensors = {"w": weights(4, 3, 3, 3), "b": weights(3 * groups)}
    check(tmp_path, model([op], IMAGE, tensors))


@given(
    kind=st.sampled_from(["MaxPool", "AveragePool", "LpPool"]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    ceil=st.integers(0, 1),
    include=st.integers(0, 1),
)
def test_pooling(tmp_path, kind, kernel, strides, pads, ceil, include):
    pads = [min(pad, kernel[index % 2] - 1) for index, pad in enumerate(pads)]
    for axis, size in enumerate(IMAGE[2:]):  # definitions of the last window disagree
        padded = size + pads[axis] + pads[axis + 2]
        windows = -(-(padded - kernel[axis]) // strides[axis]) + 1
        assume(not ceil or (windows - 1) * strides[axis] < size + pads[axis])
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if kind != "LpPool":
        attributes["ceil_mode"] = ceil
    if kind == "AveragePool":
        attributes["count_include_pad"] = include
    check(tmp_path, model([node(kind, ["x"], ["y"], **attributes)], IMAGE, opset=11))


@pytest.mark.parametrize("auto_pad", ["VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_pooling_auto_pad(tmp_path, kind, auto_pad):
    op = node(kind, ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2], auto_pad=auto_pad)
    check(tmp_path, model([op], IMAGE))


def test_max_pool_dilation(tmp_path):
    op = node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[2, 3])
    check(tmp_path, model([op], IMAGE))


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (1,)])
def test_gemm(tmp_path, trans_a, trans_b, bias):
    tensors = {"w": weights(5, 4) if trans_b else weights(4, 5)}
    names = ["v", "w"]
    if bias is not None:
        tensors["b"] = weights(*bias)
        names.append("b")
    nodes = [
        node("Transpose", ["x"], ["v"], perm=[1, 0] if trans_a else [0, 1]),
        node("Gemm", names, ["y"], alpha=0.5, beta=2.0, transA=trans_a, transB=trans_b),
    ]
    imported = check(tmp_path, model(nodes, ("N", 4), tensors))
    assert set(imported.graph.parameters) == set(tensors)


def test_gemm_with_constant_left(tmp_path):
    nodes = [node("Gemm", ["w", "x", "c"], ["t"], transB=1), node("Transpose", ["t"], ["y"])]
    check(tmp_path, model(nodes, ("N", 4), {"w": weights(5, 4), "c": weights(5, 1)}))


@pytest.mark.parametrize(
    ("shape", "weight"),
    [
        (("N", 4), (4, 3)),
        (("N", 5, 4), (4, 3)),
        (("N", 2, 5, 4), (4, 3)),
        (("N", 5, 4), (1, 4, 3)),
        (("N", 5, 4), (4,)),
    ],
)
def test_matmul_constant_right(tmp_path, shape, weight):
    imported = check(
        tmp_path, model([node("MatMul", ["x", "w"], ["y"])], shape, {"w": weights(*weight)})
    )
    assert set(imported.graph.parameters) == {"w"}


@pytest.mark.parametrize("shape", [("N", 4, 3), ("N", 2, 4, 3)])
def test_matmul_constant_left(tmp_path, shape):
    check(tmp_path, model([node("MatMul", ["w", "x"], ["y"])], shape, {"w": weights(5, 4)}))


def test_matmul_of_two_values(tmp_path):
    nodes = [node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), node("MatMul", ["x", "t"], ["y"])]
    check(tmp_path, model(nodes, ("N", 4, 3)))


UNARY = [
    ("Relu", {}),
    ("LeakyRelu", {"alpha": 0.2}),
    ("Elu", {"alpha": 1.5}),
    ("Selu", {}),
    ("Selu", {"alpha": 2.0, "gamma": 0.5}),
    ("Celu", {"alpha": 0.7}),
    ("Sigmoid", {}),
    ("HardSigmoid", {}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("HardSwish", {}),
    ("Tanh", {}),
    ("Atan", {}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("Erf", {}),
    ("Sin", {}),
    ("Cos", {}),
    ("Abs", {}),
    ("Neg", {}),
    ("Gelu", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("Mish", {}),
    ("Identity", {}),
    ("Dropout", {}),
]


@pytest.mark.parametrize(("kind", "attributes"), UNARY, ids=str)
def test_unary(tmp_path, kind, attributes):
    imported = check(tmp_path, model([node(kind, ["x"], ["y"], **attributes)], IMAGE, opset=20))
    assert len(imported.graph.nodes) == (0 if kind in {"Identity", "Dropout"} else 1)


BROADCASTS = [(), (1,), (6,), (7, 1), (4, 1, 1), (1, 4, 7, 6), (1, 1, 1, 6)]


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
@pytest.mark.parametrize("flipped", [False, True])
def test_binary_with_constant(tmp_path, kind, shape, flipped):
    inputs = ["c", "x"] if flipped else ["x", "c"]
    constant = np.asarray(weights(*shape) + 3.0, dtype=np.float32)
    imported = check(tmp_path, model([node(kind, inputs, ["y"])], IMAGE, {"c": constant}))
    assert set(imported.graph.parameters) == {"c"}


def test_constant_that_enlarges(tmp_path):
    nodes = [node("Unsqueeze", ["x", "a"], ["u"]), node("Mul", ["u", "c"], ["y"])]
    tensors = {"a": np.array([1]), "c": weights(5, 4)}
    check(tmp_path, model(nodes, ("N", 4), tensors))


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"])
def test_binary_of_values(tmp_path, kind):
    nodes = [
        node("ReduceMean", ["x"], ["m"], axes=[2], keepdims=1),
        node("Tanh", ["x"], ["t"]),
        node(kind, ["t", "m"], ["y"]),
    ]
    check(tmp_path, model(nodes, IMAGE))


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 4.0])
def test_power(tmp_path, exponent):
    tensors = {"p": np.array(exponent, np.float32)}
    check(tmp_path, model([node("Pow", ["x", "p"], ["y"])], IMAGE, tensors))


def test_where_with_constant_mask(tmp_path):
    nodes = [node("Tanh", ["x"], ["t"]), node("Where", ["m", "t", "c"], ["y"])]
    tensors = {"m": weights(7, 6) > 0}
    constant = helper.make_node("Constant", [], ["c"], value=onnx_tensor(np.array(0.5, np.float32)))
    check(tmp_path, model([constant, *nodes], IMAGE, tensors))


def onnx_tensor(array):
    from onnx import numpy_helper

    return numpy_helper.from_array(array)


@pytest.mark.parametrize("opset", [7, 11, 17])
def test_clip(tmp_path, opset):
    if opset == 7:
        proto = model([node("Clip", ["x"], ["y"], min=-0.5, max=1.0)], IMAGE, opset=opset)
    else:
        tensors = {"hi": np.array(0.7, np.float32)}
        constant = node("Constant", [], ["c"], value=onnx_tensor(tensors["hi"]))
        proto = model([constant, node("Clip", ["x", "", "c"], ["y"])], IMAGE, opset=opset)
    check(tmp_path, proto)


@pytest.mark.parametrize("shape", [(4, 1, 1), (1,), (4, 7, 6)])
def test_prelu(tmp_path, shape):
    proto = model([node("PRelu", ["x", "s"], ["y"])], IMAGE, {"s": weights(*shape)})
    assert set(check(tmp_path, proto).graph.parameters) == {"s"}


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "axis"), [(11, 1), (11, 2), (11, -1), (13, 1), (13, -1)])
def test_softmax(tmp_path, kind, opset, axis):
    check(tmp_path, model([node(kind, ["x"], ["y"], axis=axis)], IMAGE, opset=opset))


@pytest.mark.parametrize(
    "kind", ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare"]
)
@pytest.mark.parametrize("axes", [[1], [-1], [2, 3], [1, 3], [1, 2, 3]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(tmp_path, kind, axes, keepdims):
    op = node(kind, ["x"], ["y"], axes=axes, keepdims=keepdims)
    check(tmp_path, model([op], IMAGE, opset=11))


def test_reduction_with_axes_input(tmp_path):
    op = node("ReduceSum", ["x", "a"], ["y"], keepdims=0)
    check(tmp_path, model([op], IMAGE, {"a": np.array([-1, 1])}))


@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pooling(tmp_path, kind):
    check(tmp_path, model([node(kind, ["x"], ["y"])], IMAGE))


@pytest.mark.parametrize("opset", [8, 9, 14, 15])
def test_batch_norm(tmp_path, opset):
    tensors = {name: weights(4, seed=index) for index, name in enumerate("sbm")}
    tensors["v"] = np.abs(weights(4, seed=9)) + 0.1
    op = node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], epsilon=1e-3)
    imported = check(tmp_path, model([op], IMAGE, tensors, opset=opset))
    assert set(imported.graph.parameters) == {"s", "b"}


@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_layer_norm(tmp_path, axis):
    shape = (4, 7, 6)[axis if axis < 0 else axis - 1 :]
    tensors = {"s": weights(*shape), "b": weights(*shape, seed=1)}
    op = node("LayerNormalization", ["x", "s", "b"], ["y"], axis=axis)
    check(tmp_path, model([op], IMAGE, tensors))


@pytest.mark.parametrize(("opset", "size"), [(18, 2), (21, 4)])
def test_group_norm(tmp_path, opset, size):
    tensors = {"s": weights(size), "b": weights(size, seed=1)}
    op = node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)
    proto = model([op], IMAGE, tensors, opset=opset)
    proto.ir_version = 10
    imported = check(tmp_path, proto)
    operands = [each for item in imported.graph.nodes for each in item.operands.values()]
    (scale,) = (each for each in operands if each.parameter == "s")
    assert scale.gain.value == pytest.approx(np.sqrt(4 / size))


def test_instance_norm(tmp_path):
    op = node("InstanceNormalization", ["x", "s", "b"], ["y"])
    check(tmp_path, model([op], IMAGE, {"s": weights(4), "b": weights(4, seed=1)}))


def test_rms_norm(tmp_path):
    op = node("RMSNormalization", ["x", "s"], ["y"])
    proto = model([op], IMAGE, {"s": weights(6)}, opset=23)
    proto.ir_version = 11
    check(tmp_path, proto)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(tmp_path, mode):
    tensors = {"p": np.array([0, 0, 1, 2, 0, 0, 2, 1])}
    proto = model([node("Pad", ["x", "p"], ["y"], mode=mode)], IMAGE, tensors, opset=19)
    check(tmp_path, proto)


def test_pad_axes_value_and_cutting(tmp_path):
    tensors = {"p": np.array([1, -2, 0, 1]), "a": np.array([3, 2])}
    constant = node("Constant", [], ["v"], value_float=1.5)
    op = node("Pad", ["x", "p", "v", "a"], ["y"])
    check(tmp_path, model([constant, op], IMAGE, tensors, opset=18))


@pytest.mark.parametrize("perm", list(itertools.permutations(range(3))))
def test_transpose(tmp_path, perm):
    check(tmp_path, model([node("Transpose", ["x"], ["y"], perm=perm)], ("N", 3, 5)))


def test_slices(tmp_path):
    tensors = {
        "s": np.array([5, 1]),
        "e": np.array([-(2**62), 4]),
        "a": np.array([3, 2]),
        "t": np.array([-2, 1]),
    }
    check(tmp_path, model([node("Slice", ["x", "s", "e", "a", "t"], ["y"])], IMAGE, tensors))


@pytest.mark.parametrize("indices", [2, [0, -1], [[1, 1], [0, 2]]])
@pytest.mark.parametrize("axis", [1, 3])
def test_gather(tmp_path, indices, axis):
    tensors = {"i": np.array(indices)}
    check(tmp_path, model([node("Gather", ["x", "i"], ["y"], axis=axis)], IMAGE, tensors))


def test_split_and_concat(tmp_path):
    nodes = [
        node("Split", ["x", "s"], ["a", "b", "c"], axis=2),
        node("Concat", ["c", "a", "b"], ["y"], axis=2),
    ]
    check(tmp_path, model(nodes, IMAGE, {"s": np.array([2, 4, 1])}))


@pytest.mark.parametrize("order", ["cx", "xc", "xcx", "cxc", "cxcx"])
def test_concat_with_parameters(tmp_path, order):
    count = itertools.count()
    inputs = ["x" if letter == "x" else f"c{next(count)}" for letter in order]
    tensors = {name: weights(1, 2, 3, seed=3) for name in inputs if name != "x"}
    nodes, names = [], []
    for name in inputs:
        if name == "x":
            names.append("x")
            continue
        nodes.append(node("Expand", [name, "shape"], [f"{name}e"]))
        names.append(f"{name}e")
    shape = [
        node("Shape", ["x"], ["full"]),
        node("Slice", ["full", "zero", "one"], ["n"]),
        node("Concat", ["n", "rest"], ["shape"], axis=0),
    ]
    tensors |= {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([2, 3])}
    nodes = [*shape, *nodes, node("Concat", names, ["y"], axis=1)]
    imported = check(tmp_path, model(nodes, ("N", 4, 3), tensors))
    assert all(
        operand.gain.value == 1.0
        for item in imported.graph.nodes
        for operand in item.operands.values()
    )


@pytest.mark.parametrize("opset", [10, 11, 13])
@pytest.mark.parametrize("scale", [2.0, 1.5])
def test_nearest_resize(tmp_path, opset, scale):
    tensors = {"s": np.array([1, 1, scale, 2], np.float32)}
    inputs = ["x", "s"] if opset == 10 else ["x", "", "s"]
    if opset == 11:
        inputs[1] = "roi"
        tensors["roi"] = np.zeros(0, np.float32)
    check(tmp_path, model([node("Resize", inputs, ["y"])], IMAGE, tensors, opset=opset))


@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel", "align_corners"])
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_nearest_resize_modes(tmp_path, mode, nearest):
    op = node(
        "Resize",
        ["x", "", "", "s"],
        ["y"],
        coordinate_transformation_mode=mode,
        nearest_mode=nearest,
    )
    nodes = [
        node("Shape", ["x"], ["full"]),
        node("Slice", ["full", "zero", "one"], ["n"]),
        node("Concat", ["n", "rest"], ["s"], axis=0),
        op,
    ]
    tensors = {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([4, 11, 9])}
    check(tmp_path, model(nodes, IMAGE, tensors, opset=13))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(tmp_path, mode):
    op = node("DepthToSpace", ["x"], ["y"], blocksize=2, mode=mode)
    check(tmp_path, model([op], ("N", 12, 3, 2)))


def test_space_to_depth(tmp_path):
    check(tmp_path, model([node("SpaceToDepth", ["x"], ["y"], blocksize=2)], ("N", 3, 4, 6)))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("count", [3, 7])
def test_top_k(tmp_path, largest, count):
    op = node("TopK", ["x", "k"], ["y", "i"], axis=2, largest=largest)
    check(tmp_path, model([op], IMAGE, {"k": np.array([count])}))


def test_tile_expand_flatten_squeeze(tmp_path):
    nodes = [
        node("Tile", ["x", "r"], ["t"]),
        node("Unsqueeze", ["t", "a"], ["u"]),
        node("Expand", ["u", "e"], ["v"]),
        node("Flatten", ["v"], ["y"], axis=1),
    ]
    tensors = {"r": np.array([1, 2, 1]), "a": np.array([2]), "e": np.array([1, 1, 3, 1])}
    check(tmp_path, model(nodes, ("N", 2, 3), tensors))


def test_double_precision(tmp_path):
    tensors = {"w": np.random.default_rng(0).standard_normal((4, 3))}
    imported = check(
        tmp_path, model([node("MatMul", ["x", "w"], ["y"])], ("N", 4), tensors, dtype=11)
    )
    assert imported.verification.max_difference < 1e-12
