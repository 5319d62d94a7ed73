"""Graphs that let examples meet, or use the size of the batch, must not be called proved."""

import numpy as np
import pytest

from lipcert.core.lower.errors import Unsupported
from tests.core.lower.cases import agrees, kinds, model, program

RNG = np.random.default_rng(1)
W = RNG.standard_normal((4, 4))
SHAPE = "s = Shape(x)"
SIZE = f"{SHAPE}  n = Gather<axis=0>(s, zero)"


HOSTILE = {
    "mean over the batch": ("y = ReduceMean<axes=[0]>(x)", "N 4", {}),
    "mean over everything": ("y = ReduceMean<keepdims=1>(x)", "N 4", {}),
    "mean from the end": ("y = ReduceMean<axes=[-2]>(x)", "N 4", {}),
    "empty axes": ("y = ReduceSum(x, axes)", "N 4", {"axes": np.zeros(0, int)}),
    "maximum over the batch": ("y = ReduceMax<axes=[0]>(x)", "N 4", {}),
    "softmax over the batch": ("y = Softmax<axis=0>(x)", "N 4", {}),
    "log-softmax over the batch": ("y = LogSoftmax<axis=-2>(x)", "N 4", {}),
    "layer norm over the batch": ("y = LayerNormalization<axis=0>(x, g)", "N 4", {"g": W}),
    "sorted batch": ("y, i = TopK<axis=0>(x, k)", "N 4", {"k": [1]}),
    "gram matrix": ("t = Transpose(x)  y = MatMul(x, t)", "N 4", {}),
    "covariance": ("t = Transpose(x)  y = MatMul(t, x)", "N 4", {}),
    "contracted batch": ("y = Gemm(w, x)", "N 4", {"w": np.ones((1, 1))}),
    "outer sum": ("t = Transpose(x)  y = Add(x, t)", "N 1", {}),
    "rows plus column": ("r = Reshape(x, m)  y = Add(x, r)", "N 1", {"m": [-1]}),
    "first example only": ("y = Gather<axis=0>(x, zero)", "N 4", {"zero": [0]}),
    "shifted batch": ("y = Slice(x, a, b, c)", "N 4", {"a": [1], "b": [2**62], "c": [0]}),
    "reversed batch": ("y = Slice(x, a, b, c, d)", "N 4",
        {"a": [-1], "b": [-(2**62)], "c": [0], "d": [-1]}),
    "half of the batch": (f"{SIZE}  h = Div(n, two)  y = Slice(x, o, h, o)", "N 4",
        {"zero": [0], "two": [2], "o": [0]}),
    "data times batch size": (f"{SIZE}  f = Cast<to=1>(n)  y = Mul(x, f)", "N 4", {"zero": 0}),
    "data over batch size": (f"{SIZE}  f = Cast<to=1>(n)  y = Div(x, f)", "N 4", {"zero": 0}),
    "power of the batch size": (f"{SIZE}  f = Cast<to=1>(n)  y = Pow(x, f)", "N 4", {"zero": 0}),
    "limit from the batch size": (f"{SIZE}  f = Cast<to=1>(n)  y = Clip(x, , f)", "N 4",
        {"zero": 0}),
    "chosen by the batch size": (f"{SIZE}  e = Equal(n, seven)  y = Where(e, x, w)", "N 4",
        {"zero": 0, "seven": 7, "w": np.ones(4)}),
    "columns up to the batch size": (f"{SIZE}  y = Slice(x, o, n, one)", "N 4",
        {"zero": [0], "o": [0], "one": [1]}),
    "entry of the number of the batch size": (f"{SIZE}  i = Sub(n, one)  y = Gather<axis=1>(x, i)",
        "N 4", {"zero": 0, "one": 1}),
    "axes from the batch size": (f"{SIZE}  y = Unsqueeze(x, n)", "N 4", {"zero": [0]}),
    "padding by the batch size": (f"{SIZE}  p = Concat<axis=0>(o, o, o, n)  y = Pad(x, p)", "N 4",
        {"zero": [0], "o": [0]}),
    "padded batch": ("y = Pad(x, p)", "N 4", {"p": [1, 0, 0, 0]}),
    "pairs": ("y = Reshape(x, m)", "N 4", {"m": [-1, 8]}),
    "pairs side by side": ("y = Reshape(x, m)", "N 4", {"m": [2, -1]}),
    "all in one row": ("r = Reshape(x, m)  y = ReduceSum<keepdims=1>(r)", "N 4", {"m": [1, -1]}),
    "row softmax": ("r = Reshape(x, m)  y = Softmax<axis=1>(r)", "N 4", {"m": [1, -1]}),
    "a row of examples and channels": ("r = Reshape(x, m)  y = InstanceNormalization(r, g, h)",
        "N 4 3", {"m": [1, 4, -1], "g": np.ones(4), "h": np.zeros(4)}),
    "reshaped to a fixed size": ("y = Reshape(x, m)", "N 4", {"m": [1, 4]}),
    "repeated batch": ("y = Tile(x, m)", "N 4", {"m": [2, 1]}),
    "repeated by the batch": (f"{SIZE}  m = Concat<axis=0>(one, n)  y = Tile(x, m)", "N 4",
        {"zero": [0], "one": [1]}),
    "stretched by the batch": (f"{SIZE}  m = Concat<axis=0>(n, n, one)  y = Expand(x, m)", "N 1",
        {"zero": [0], "one": [1]}),
    "doubled batch": ("y = Concat<axis=0>(x, x)", "N 4", {}),
    "other constant for every example": ("y = Add(x, c)", "N 4", {"c": np.ones((2, 4))}),
    "resized batch": ('y = Resize<mode="nearest">(x, , m)', "N 1 4 4", {"m": [2.0, 1.0, 1.0, 1.0]}),
    "batch as channels": ("t = Transpose<perm=[1, 0, 2]>(x)  y = Conv(t, w)", "N 1 8",
        {"w": np.ones((1, 1, 3))}),
    "normalised as channels": ("t = Transpose(x)  y = BatchNormalization(t, g, h, m, v)", "N 1",
        {"g": [1.0], "h": [0.0], "m": [0.0], "v": [1.0]}),
    "ones counted": (f"""{SHAPE}  o = ConstantOfShape(s)  c = ReduceSum<keepdims=0>(o)
        y = Mul(x, c)""", "N 4", {}),
    "training statistics": ("y, m2, v2 = BatchNormalization<training_mode=1>(x, g, h, m, v)", "N 4",
        {"g": np.ones(4), "h": np.ones(4), "m": np.ones(4), "v": np.ones(4)}),
    "summed batch behind a merge": ("r = Reshape(x, m)  y = ReduceMean<axes=[0]>(r)", "N 4 3",
        {"m": [-1, 3]}),
    "compared sizes": ("n = Size(x)  e = Equal(n, eight)  y = Where(e, x, w)", "N 4",
        {"eight": 8, "w": np.ones(4)}),
    "sum of sizes": (f"{SIZE}  k = Add(n, one)  t = Concat<axis=0>(k, m)  y = Reshape(x, t)", "N 4",
        {"zero": [0], "one": [0], "m": [4]}),
    "as many axes as examples": (f"""{SIZE}  o = ConstantOfShape<value=int64[1]{{1}}>(n)
        e = Expand(x, o)  y = Softmax<axis=1>(e)""", "N 4", {"zero": [0]}),
    "as many limits as examples": (f"{SIZE}  o = ConstantOfShape(n)  y = Clip(x, o)", "N 4",
        {"zero": [0]}),
    "quantised numbers counted": (f"""{SHAPE}  o = ConstantOfShape<value=uint8[1]{{3}}>(s)
        d = DequantizeLinear(o, half)  c = ReduceSum<keepdims=0>(d)  y = Mul(x, c)""", "N 4",
        {"half": 0.5}),
    "numbers of examples added to a weight": (f"""{SIZE}  r = Range(o, n, one)  f = Cast<to=1>(r)
        c = Unsqueeze(f, axis)  v = Add(w, c)  y = Mul(x, v)""", "N 4",
        {"zero": 0, "o": 0, "one": 1, "axis": [1], "w": np.ones(4)}),
    "batch sizes that bytes hold": (f"""{SIZE}  b = Cast<to=2>(n)  m = Cast<to=7>(b)
        r = Range(o, m, one)  g = Gather(x, r)  y = Add(x, g)""", "N 4",
        {"zero": 0, "o": 0, "one": 1}),
    "batch sizes that wrap around": (f"""{SIZE}  b = Mul(n, d)  m = Div(b, d)  r = Range(o, m, one)
        g = Gather(x, r)  y = Add(x, g)""", "N 4", {"zero": 0, "o": 0, "one": 1, "d": 2**62}),
    "batch sizes that wrap around in int32": (f"""{SIZE}  b = Mul(n, d)  i = Cast<to=6>(b)
        l = Cast<to=7>(i)  m = Div(l, d)  r = Range(o, m, one)  g = Gather(x, r)  y = Add(x, g)""",
        "N 4", {"zero": 0, "o": 0, "one": 1, "d": 2**25}),
    "products of sizes that wrap around": (f"""{SIZE}  l = Concat<axis=0>(n, d)
        b = ReduceProd<keepdims=0>(l)  m = Div(b, e)  r = Range(o, m, one)  g = Gather(x, r)
        y = Add(x, g)""", "N 4", {"zero": [0], "o": 0, "one": 1, "d": [2**62], "e": 2**62}),
    "numbers of examples that float16 rounds": (
        f"{SIZE}  r = Range(o, n, one)  h = Cast<to=10>(r)  i = Cast<to=7>(h)  y = Gather(x, i)",
        "N 4", {"zero": 0, "o": 0, "one": 1}),
    "axis dropped where it is one": ("y = Squeeze(x)", "N 4", {}),
    "examples side by side where they are even": (f"""{SIZE}  o = Mod(n, two)  f = Sub(three, o)
        k = Mul(f, two)  t = Concat<axis=0>(r, k)  p = Reshape(x, t)  z = Softmax<axis=-1>(p)
        y = Reshape(z, s)""", "N 4", {"zero": [0], "two": [2], "three": [3], "r": [-1]}),
    "a weight for seven examples": (f"""{SIZE}  e = Equal(n, seven)  f = Cast<to=1>(e)
        y = Mul(x, f)""", "N 4", {"zero": 0, "seven": 7}),
    "the largest number below the batch size": (f"""{SIZE}  r = Range(o, n, one)
        l = ReduceMax<keepdims=0>(r)  f = Cast<to=1>(l)  y = Mul(x, f)""", "N 4",
        {"zero": 0, "o": 0, "one": 1}),
    "as many rows of a table as examples": (f"{SIZE}  r = Slice(w, zero, n, zero)  y = Mul(x, r)",
        "N 4", {"zero": [0], "w": np.arange(36.0).reshape(9, 4)}),
    "a product of ones": (f"{SIZE}  o = Expand(u, n)  c = MatMul(o, o)  y = Mul(x, c)", "N 4",
        {"zero": [0], "u": [1.0]}),
    "the first five of as many as examples": (f"""{SIZE}  a = Expand(u, n)  b = Sub(a, u)
        c = Concat<axis=0>(a, b)  p = Slice(c, zero, five)  k = ReduceSum(p)  y = Mul(x, k)""",
        "N 4", {"zero": [0], "five": [5], "u": [1.0]}),
    "the first four of zeros and a one": (f"""{SIZE}  a = Expand(u, n)  b = Sub(a, u)
        c = Concat<axis=0>(b, u)  p = Slice(c, zero, four)  y = Mul(x, p)""", "N 4",
        {"zero": [0], "four": [4], "u": [1.0]}),
    "batch resized by less than a place": (
        """y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor">(x, , m)""",
        "N 4", {"m": [1.02, 1.0]}),
    "batch moved by half a place": (
        """y = Resize<mode="nearest", nearest_mode="ceil",
        coordinate_transformation_mode="tf_half_pixel_for_nn">(x, , m)""",
        "N 4", {"m": [1.0, 1.0]}),
    "interpolated batch": (
        'y = Resize<mode="linear", coordinate_transformation_mode="asymmetric">(x, , m)', "N 4",
        {"m": [1.05, 1.0]}),
    "rotated batch": ("p = Slice(x, a, b, c)  q = Slice(x, o, a, c)  y = Concat<axis=0>(p, q)",
        "N 4", {"a": [1], "b": [2**62], "c": [0], "o": [0]}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_graph_that_mixes_examples_is_refused(name):
    nodes, dims, constants = HOSTILE[name]
    shape = [int(item) if item.isdigit() else item for item in dims.split()]
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
    nodes = "c = Concat<axis=0>(x, x)  y = MatMul(c, w)"
    assert not program(model(nodes, [1, 4], constants)).batch_proved
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", 4], constants))


def test_a_matrix_times_a_vector():
    found = program(model("y = MatMul(w, x)", [4], {"w": np.arange(12.0).reshape(3, 4)}))
    assert not found.batch_proved
    assert found.shapes[found.output] == (3,)


FINE = {
    "flattened by the batch size": (f"{SIZE}  t = Concat<axis=0>(n, m)  y = Reshape(x, t)", "N 4 3",
        {"zero": [0], "m": [-1]}),
    "merged batch": ("r = Reshape(x, m)  p = MatMul(r, w)  y = Reshape(p, q)", "N 3 4",
        {"m": [-1, 4], "w": W, "q": [-1, 12]}),
    "heads in the batch": ("""t = Transpose<perm=[2, 0, 1]>(x)  r = Reshape(t, m)
        z = Softmax<axis=-1>(r)  u = Reshape(z, q)  y = Transpose<perm=[1, 2, 0]>(u)""", "N 3 4",
        {"m": [-1, 3], "q": [4, -1, 3]}),
    "one token for every example": (f"""{SIZE}  t = Concat<axis=0>(n, one, d)  e = Expand(c, t)
        y = Concat<axis=1>(e, x)""", "N 3 4",
        {"zero": [0], "one": [1], "d": [4], "c": RNG.standard_normal((1, 1, 4))}),
    "zeros for every example": (f"""{SIZE}  t = Concat<axis=0>(n, m)  z = ConstantOfShape(t)
        y = Concat<axis=1>(x, z)""", "N 4", {"zero": [0], "m": [2]}),
    "whole slice": (f"{SIZE}  y = Slice(x, o, n, o)", "N 4", {"zero": [0], "o": [0]}),
    "batch last": ("t = Transpose(x)  p = MatMul(w, t)  y = Transpose(p)", "N 4", {"w": W}),
    "batch size over itself": (f"{SIZE}  k = Div(n, n)  f = Cast<to=1>(k)  y = Mul(x, f)", "N 4",
        {"zero": 0}),
    "half as many pairs": ("""n = Size(x)  h = Div(n, two)  k = Unsqueeze(h, o)
        t = Concat<axis=0>(k, two2)  r = Reshape(x, t)  z = ReduceSum<keepdims=1>(r, one)
        y = Reshape(z, q)""", "N 4", {"two": 2, "o": [0], "two2": [2], "one": [1], "q": [-1, 2]}),
    "expand as exporters write it": ("e = Equal(t, m)  u = Where(e, one, t)  y = Expand(x, u)",
        "N 4", {"t": [1, -1], "m": [-1, -1], "one": [1, 1]}),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_the_shape_arithmetic_of_exporters_is_followed(name):
    nodes, dims, constants = FINE[name]
    shape = [int(item) if item.isdigit() else item for item in dims.split()]
    assert agrees(model(nodes, shape, constants)).batch_proved


def test_a_file_of_one_example_is_read_as_one():
    nodes = "r = Reshape(x, m)  y = MatMul(r, w)"
    found = agrees(model(nodes, [1, 2, 2], {"m": [1, 4], "w": W}))
    assert not found.batch_proved
    assert kinds(found) == ["Move", "Dense"]


def test_a_fixed_batch_is_read_as_any_batch_where_nothing_depends_on_it():
    found = program(model("y = MatMul(x, w)", [5, 4], {"w": W}))
    assert found.batch_proved
    assert found.shapes["x"] == (1, 4)


def test_a_vector_is_one_example():
    found = agrees(model("y = MatMul(x, w)", [4], {"w": W}))
    assert not found.batch_proved
    assert found.shapes["x"] == (4,)
