"""Graphs that let examples meet, or use the size of the batch, must not be called proved."""

import numpy as np
import pytest
from onnx import numpy_helper

from lipcert.core.lower.errors import Unsupported
from tests.core.lower.cases import agrees, kinds, model, node, program

RNG = np.random.default_rng(1)
W = RNG.standard_normal((4, 4))
SHAPE = node("Shape", "x", "s")
SIZE = [SHAPE, node("Gather", "s zero", "n", axis=0)]


def filled(number, dtype):
    return numpy_helper.from_array(np.asarray([number], dtype))


HOSTILE = {
    "mean over the batch": ([node("ReduceMean", "x", axes=[0])], "N 4", {}),
    "mean over everything": ([node("ReduceMean", "x", keepdims=1)], "N 4", {}),
    "mean from the end": ([node("ReduceMean", "x", axes=[-2])], "N 4", {}),
    "empty axes": ([node("ReduceSum", "x axes")], "N 4", {"axes": np.zeros(0, int)}),
    "maximum over the batch": ([node("ReduceMax", "x", axes=[0])], "N 4", {}),
    "softmax over the batch": ([node("Softmax", "x", axis=0)], "N 4", {}),
    "log-softmax over the batch": ([node("LogSoftmax", "x", axis=-2)], "N 4", {}),
    "layer norm over the batch": ([node("LayerNormalization", "x g", axis=0)], "N 4", {"g": W}),
    "sorted batch": ([node("TopK", "x k", "y i", axis=0)], "N 4", {"k": [1]}),
    "gram matrix": ([node("Transpose", "x", "t"), node("MatMul", "x t", "y")], "N 4", {}),
    "covariance": ([node("Transpose", "x", "t"), node("MatMul", "t x", "y")], "N 4", {}),
    "contracted batch": ([node("Gemm", "w x", "y")], "N 4", {"w": np.ones((1, 1))}),
    "outer sum": ([node("Transpose", "x", "t"), node("Add", "x t")], "N 1", {}),
    "rows plus column": (
        [node("Reshape", "x m", "r"), node("Add", "x r")], "N 1", {"m": [-1]}),
    "first example only": ([node("Gather", "x zero", "y", axis=0)], "N 4", {"zero": [0]}),
    "shifted batch": (
        [node("Slice", "x a b c", "y")], "N 4", {"a": [1], "b": [2**62], "c": [0]}),
    "reversed batch": (
        [node("Slice", "x a b c d", "y")], "N 4",
        {"a": [-1], "b": [-(2**62)], "c": [0], "d": [-1]}),
    "half of the batch": (
        [*SIZE, node("Div", "n two", "h"), node("Slice", "x o h o", "y")],
        "N 4", {"zero": [0], "two": [2], "o": [0]}),
    "data times batch size": (
        [*SIZE, node("Cast", "n", "f", to=1), node("Mul", "x f")], "N 4", {"zero": 0}),
    "data over batch size": (
        [*SIZE, node("Cast", "n", "f", to=1), node("Div", "x f")], "N 4", {"zero": 0}),
    "power of the batch size": (
        [*SIZE, node("Cast", "n", "f", to=1), node("Pow", "x f")], "N 4", {"zero": 0}),
    "limit from the batch size": (
        [*SIZE, node("Cast", "n", "f", to=1), node("Clip", "x - f")], "N 4", {"zero": 0}),
    "chosen by the batch size": (
        [*SIZE, node("Equal", "n seven", "e"), node("Where", "e x w")],
        "N 4", {"zero": 0, "seven": 7, "w": np.ones(4)}),
    "columns up to the batch size": (
        [*SIZE, node("Slice", "x o n one", "y")], "N 4", {"zero": [0], "o": [0], "one": [1]}),
    "entry of the number of the batch size": (
        [*SIZE, node("Sub", "n one", "i"), node("Gather", "x i", "y", axis=1)],
        "N 4", {"zero": 0, "one": 1}),
    "axes from the batch size": (
        [*SIZE, node("Unsqueeze", "x n", "y")], "N 4", {"zero": [0]}),
    "padding by the batch size": (
        [*SIZE, node("Concat", "o o o n", "p", axis=0), node("Pad", "x p", "y")],
        "N 4", {"zero": [0], "o": [0]}),
    "padded batch": ([node("Pad", "x p", "y")], "N 4", {"p": [1, 0, 0, 0]}),
    "pairs": ([node("Reshape", "x m", "y")], "N 4", {"m": [-1, 8]}),
    "pairs side by side": ([node("Reshape", "x m", "y")], "N 4", {"m": [2, -1]}),
    "all in one row": (
        [node("Reshape", "x m", "r"), node("ReduceSum", "r", "y", keepdims=1)],
        "N 4", {"m": [1, -1]}),
    "row softmax": (
        [node("Reshape", "x m", "r"), node("Softmax", "r", axis=1)], "N 4", {"m": [1, -1]}),
    "a row of examples and channels": (
        [node("Reshape", "x m", "r"), node("InstanceNormalization", "r g h")],
        "N 4 3", {"m": [1, 4, -1], "g": np.ones(4), "h": np.zeros(4)}),
    "reshaped to a fixed size": ([node("Reshape", "x m", "y")], "N 4", {"m": [1, 4]}),
    "repeated batch": ([node("Tile", "x m", "y")], "N 4", {"m": [2, 1]}),
    "repeated by the batch": (
        [*SIZE, node("Concat", "one n", "m", axis=0), node("Tile", "x m", "y")],
        "N 4", {"zero": [0], "one": [1]}),
    "stretched by the batch": (
        [*SIZE, node("Concat", "n n one", "m", axis=0), node("Expand", "x m", "y")],
        "N 1", {"zero": [0], "one": [1]}),
    "doubled batch": ([node("Concat", "x x", axis=0)], "N 4", {}),
    "other constant for every example": ([node("Add", "x c")], "N 4", {"c": np.ones((2, 4))}),
    "resized batch": (
        [node("Resize", "x - m", mode="nearest")], "N 1 4 4", {"m": [2.0, 1.0, 1.0, 1.0]}),
    "batch as channels": (
        [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Conv", "t w")],
        "N 1 8", {"w": np.ones((1, 1, 3))}),
    "normalised as channels": (
        [node("Transpose", "x", "t"), node("BatchNormalization", "t g h m v")],
        "N 1", {"g": [1.0], "h": [0.0], "m": [0.0], "v": [1.0]}),
    "ones counted": (
        [node("ConstantOfShape", "s", "o"), SHAPE, node("ReduceSum", "o", "c", keepdims=0),
         node("Mul", "x c")], "N 4", {}),
    "training statistics": (
        [node("BatchNormalization", "x g h m v", "y m2 v2", training_mode=1)],
        "N 4", {"g": np.ones(4), "h": np.ones(4), "m": np.ones(4), "v": np.ones(4)}),
    "summed batch behind a merge": (
        [node("Reshape", "x m", "r"), node("ReduceMean", "r", axes=[0])],
        "N 4 3", {"m": [-1, 3]}),
    "compared sizes": (
        [node("Size", "x", "n"), node("Equal", "n eight", "e"), node("Where", "e x w")],
        "N 4", {"eight": 8, "w": np.ones(4)}),
    "sum of sizes": (
        [*SIZE, node("Add", "n one", "k"), node("Concat", "k m", "t", axis=0),
         node("Reshape", "x t")], "N 4", {"zero": [0], "one": [0], "m": [4]}),
    "as many axes as examples": (
        [*SIZE, node("ConstantOfShape", "n", "o", value=filled(1, np.int64)),
         node("Expand", "x o", "e"), node("Softmax", "e", axis=1)], "N 4", {"zero": [0]}),
    "as many limits as examples": (
        [*SIZE, node("ConstantOfShape", "n", "o"), node("Clip", "x o")], "N 4", {"zero": [0]}),
    "quantised numbers counted": (
        [SHAPE, node("ConstantOfShape", "s", "o", value=filled(3, np.uint8)),
         node("DequantizeLinear", "o half", "d"), node("ReduceSum", "d", "c", keepdims=0),
         node("Mul", "x c")], "N 4", {"half": 0.5}),
    "numbers of examples added to a weight": (
        [*SIZE, node("Range", "o n one", "r"), node("Cast", "r", "f", to=1),
         node("Unsqueeze", "f axis", "c"), node("Add", "w c", "v"), node("Mul", "x v")],
        "N 4", {"zero": 0, "o": 0, "one": 1, "axis": [1], "w": np.ones(4)}),
    "batch sizes that bytes hold": (
        [*SIZE, node("Cast", "n", "b", to=2), node("Cast", "b", "m", to=7),
         node("Range", "o m one", "r"), node("Gather", "x r", "g"), node("Add", "x g")],
        "N 4", {"zero": 0, "o": 0, "one": 1}),
    "batch sizes that wrap around": (
        [*SIZE, node("Mul", "n d", "b"), node("Div", "b d", "m"),
         node("Range", "o m one", "r"), node("Gather", "x r", "g"), node("Add", "x g")],
        "N 4", {"zero": 0, "o": 0, "one": 1, "d": 2**62}),
    "batch sizes that wrap around in int32": (
        [*SIZE, node("Mul", "n d", "b"), node("Cast", "b", "i", to=6), node("Cast", "i", "l", to=7),
         node("Div", "l d", "m"), node("Range", "o m one", "r"), node("Gather", "x r", "g"),
         node("Add", "x g")], "N 4", {"zero": 0, "o": 0, "one": 1, "d": 2**25}),
    "products of sizes that wrap around": (
        [*SIZE, node("Concat", "n d", "l", axis=0), node("ReduceProd", "l", "b", keepdims=0),
         node("Div", "b e", "m"), node("Range", "o m one", "r"), node("Gather", "x r", "g"),
         node("Add", "x g")],
        "N 4", {"zero": [0], "o": 0, "one": 1, "d": [2**62], "e": 2**62}),
    "numbers of examples that float16 rounds": (
        [*SIZE, node("Range", "o n one", "r"), node("Cast", "r", "h", to=10),
         node("Cast", "h", "i", to=7), node("Gather", "x i")],
        "N 4", {"zero": 0, "o": 0, "one": 1}),
    "axis dropped where it is one": ([node("Squeeze", "x", "y")], "N 4", {}),
    "examples side by side where they are even": (
        [*SIZE, node("Mod", "n two", "o"), node("Sub", "three o", "f"), node("Mul", "f two", "k"),
         node("Concat", "r k", "t", axis=0), node("Reshape", "x t", "p"),
         node("Softmax", "p", "z", axis=-1), node("Reshape", "z s")],
        "N 4", {"zero": [0], "two": [2], "three": [3], "r": [-1]}),
    "a weight for seven examples": (
        [*SIZE, node("Equal", "n seven", "e"), node("Cast", "e", "f", to=1), node("Mul", "x f")],
        "N 4", {"zero": 0, "seven": 7}),
    "the largest number below the batch size": (
        [*SIZE, node("Range", "o n one", "r"), node("ReduceMax", "r", "l", keepdims=0),
         node("Cast", "l", "f", to=1), node("Mul", "x f")], "N 4", {"zero": 0, "o": 0, "one": 1}),
    "as many rows of a table as examples": (
        [*SIZE, node("Slice", "w zero n zero", "r"), node("Mul", "x r")],
        "N 4", {"zero": [0], "w": np.arange(36.0).reshape(9, 4)}),
    "a product of ones": (
        [*SIZE, node("Expand", "u n", "o"), node("MatMul", "o o", "c"), node("Mul", "x c")],
        "N 4", {"zero": [0], "u": [1.0]}),
    "the first five of as many as examples": (
        [*SIZE, node("Expand", "u n", "a"), node("Sub", "a u", "b"),
         node("Concat", "a b", "c", axis=0), node("Slice", "c zero five", "p"),
         node("ReduceSum", "p", "k"), node("Mul", "x k")],
        "N 4", {"zero": [0], "five": [5], "u": [1.0]}),
    "the first four of zeros and a one": (
        [*SIZE, node("Expand", "u n", "a"), node("Sub", "a u", "b"),
         node("Concat", "b u", "c", axis=0), node("Slice", "c zero four", "p"), node("Mul", "x p")],
        "N 4", {"zero": [0], "four": [4], "u": [1.0]}),
    "batch resized by less than a place": (
        [node("Resize", "x - m", mode="nearest", coordinate_transformation_mode="asymmetric",
              nearest_mode="floor")], "N 4", {"m": [1.02, 1.0]}),
    "batch moved by half a place": (
        [node("Resize", "x - m", mode="nearest", nearest_mode="ceil",
              coordinate_transformation_mode="tf_half_pixel_for_nn")], "N 4", {"m": [1.0, 1.0]}),
    "interpolated batch": (
        [node("Resize", "x - m", mode="linear", coordinate_transformation_mode="asymmetric")],
        "N 4", {"m": [1.05, 1.0]}),
    "rotated batch": (
        [node("Slice", "x a b c", "p"), node("Slice", "x o a c", "q"),
         node("Concat", "p q", axis=0)], "N 4", {"a": [1], "b": [2**62], "c": [0], "o": [0]}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_graph_that_mixes_examples_is_refused(name):
    nodes, dims, constants = HOSTILE[name]
    shape = [int(item) if item.isdigit() else item for item in dims.split()]
    order = [item for item in nodes if item.op_type == "Shape"]
    nodes = [*order, *(item for item in nodes if item.op_type != "Shape")]
    with pytest.raises(Unsupported):
        program(model(nodes, shape, constants))


READS_ACROSS = ["mean over the batch", "softmax over the batch", "sorted batch", "gram matrix"]


@pytest.mark.parametrize("name", READS_ACROSS)
def test_a_fixed_batch_of_one_does_not_excuse_reading_across(name):
    nodes, _, constants = HOSTILE[name]
    with pytest.raises(Unsupported):
        program(model(nodes, [1, 4], constants))


def test_moves_in_a_fixed_batch_of_one_are_read_as_one_example():
    constants = {"i": [0], "w": np.ones((4, 3))}
    nodes = [node("Concat", "x x", "c", axis=0), node("MatMul", "c w")]
    assert not program(model(nodes, [1, 4], constants)).batch_proved
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", 4], constants))


def test_a_matrix_times_a_vector():
    found = program(model([node("MatMul", "w x")], [4], {"w": np.arange(12.0).reshape(3, 4)}))
    assert not found.batch_proved
    assert found.shapes[found.output] == (3,)


FINE = {
    "flattened by the batch size": (
        [*SIZE, node("Concat", "n m", "t", axis=0), node("Reshape", "x t")],
        "N 4 3", {"zero": [0], "m": [-1]}),
    "merged batch": (
        [node("Reshape", "x m", "r"), node("MatMul", "r w", "p"), node("Reshape", "p q")],
        "N 3 4", {"m": [-1, 4], "w": W, "q": [-1, 12]}),
    "heads in the batch": (
        [node("Transpose", "x", "t", perm=[2, 0, 1]), node("Reshape", "t m", "r"),
         node("Softmax", "r", "z", axis=-1), node("Reshape", "z q", "u"),
         node("Transpose", "u", "y", perm=[1, 2, 0])],
        "N 3 4", {"m": [-1, 3], "q": [4, -1, 3]}),
    "one token for every example": (
        [*SIZE, node("Concat", "n one d", "t", axis=0), node("Expand", "c t", "e"),
         node("Concat", "e x", axis=1)],
        "N 3 4", {"zero": [0], "one": [1], "d": [4], "c": RNG.standard_normal((1, 1, 4))}),
    "zeros for every example": (
        [*SIZE, node("Concat", "n m", "t", axis=0), node("ConstantOfShape", "t", "z"),
         node("Concat", "x z", axis=1)], "N 4", {"zero": [0], "m": [2]}),
    "whole slice": (
        [*SIZE, node("Slice", "x o n o", "y")], "N 4", {"zero": [0], "o": [0]}),
    "batch last": (
        [node("Transpose", "x", "t"), node("MatMul", "w t", "p"), node("Transpose", "p")],
        "N 4", {"w": W}),
    "batch size over itself": (
        [*SIZE, node("Div", "n n", "k"), node("Cast", "k", "f", to=1), node("Mul", "x f")],
        "N 4", {"zero": 0}),
    "half as many pairs": (
        [node("Size", "x", "n"), node("Div", "n two", "h"), node("Unsqueeze", "h o", "k"),
         node("Concat", "k two2", "t", axis=0), node("Reshape", "x t", "r"),
         node("ReduceSum", "r one", "z", keepdims=1), node("Reshape", "z q")],
        "N 4", {"two": 2, "o": [0], "two2": [2], "one": [1], "q": [-1, 2]}),
    "expand as exporters write it": (
        [node("Equal", "t m", "e"), node("Where", "e one t", "u"), node("Expand", "x u")],
        "N 4", {"t": [1, -1], "m": [-1, -1], "one": [1, 1]}),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_the_shape_arithmetic_of_exporters_is_followed(name):
    nodes, dims, constants = FINE[name]
    shape = [int(item) if item.isdigit() else item for item in dims.split()]
    assert agrees(model(nodes, shape, constants)).batch_proved


def test_a_file_of_one_example_is_read_as_one():
    nodes = [node("Reshape", "x m", "r"), node("MatMul", "r w")]
    found = agrees(model(nodes, [1, 2, 2], {"m": [1, 4], "w": W}))
    assert not found.batch_proved
    assert kinds(found) == ["Move", "Dense"]


def test_a_fixed_batch_is_read_as_any_batch_where_nothing_depends_on_it():
    found = program(model([node("MatMul", "x w")], [5, 4], {"w": W}))
    assert found.batch_proved
    assert found.shapes["x"] == (1, 4)


def test_a_vector_is_one_example():
    found = agrees(model([node("MatMul", "x w")], [4], {"w": W}))
    assert not found.batch_proved
    assert found.shapes["x"] == (4,)
