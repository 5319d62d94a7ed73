"""Single operators and their attributes, compared with onnxruntime."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto

from lipcert.core.lower.errors import Unsupported
from lipcert.graph.evaluate import output_of
from tests.core.lower.cases import agrees, kinds, listed, model, program

RNG = np.random.default_rng(2)


def r(*shape: int):
    return RNG.standard_normal(shape)


I4 = ["N", 4, 6, 6]
CASES = {
    # name: (nodes, shape, constants, opset)
    "gemm": ("y = Gemm<alpha=0.5, beta=2.0, transB=1>(x, w, c)", ["N", 4],
        {"w": r(3, 4), "c": r(3)}, 13),
    "a part without entries": ("none = Slice(x, zero, zero, one)  y = Concat<axis=1>(x, none, x)",
        ["N", 4, 3], {"zero": [0], "one": [1]}, 13),
    "heads of every example": ("""n = Shape<end=1>(x)  times = Concat<axis=0>(n, one)
        t = Tile(c, times)  f = Reshape(x, flat)  s = Add(f, t)  y = Reshape(s, back)""",
        ["N", 2, 3], {"one": [1], "c": r(2, 1), "flat": [-1, 3], "back": [-1, 2, 3]}, 15),
    "powers of constants": ("p = Pow(a, b)  y = Mul(x, p)", ["N", 2, 3],
        {"a": np.abs(r(2, 1)), "b": [0, 3, -2]}, 15),
    "whole powers of constants": ("p = Pow(a, b)  f = Cast<to=1>(p)  y = Mul(x, f)", ["N", 3],
        {"a": 3, "b": [0, 3, 2]}, 15),
    "counted ones": ("""s = Shape(x)  o = Expand(c, s)  p = CumSum(o, one)  i = Cast<to=7>(p)
        g = Gather(t, i)  y = Mul(x, g)""", ["N", 3], {"c": 1.0, "one": 1, "t": r(4)}, 15),
    "several images of an example": ("""m = Reshape(x, many)
        c = Conv<strides=[2, 1], pads=[1, 0, 0, 2], group=2, dilations=[1, 2]>(m, w, b)
        t = ConvTranspose<strides=[2, 2], output_padding=[1, 0]>(c, v)  y = Reshape(t, few)""",
        ["N", 3, 4, 5, 6],
        {"many": [-1, 4, 5, 6], "few": [-1, 3, 2, 7, 8], "w": r(4, 2, 2, 3), "b": r(4), "v": r(4,
        2, 2, 2)},
        15),
    "the row of the first example, which each has": ("""s = Shape(x)  e = Expand(c, s)
        f = Slice(e, zero, one, zero)  y = Mul(x, f)""", ["N", 3],
        {"c": r(1, 3), "zero": [0], "one": [1]}, 15),
    "slices in front of the batch": ("""t = Transpose<perm=[1, 2, 0]>(x)
        g = GatherND<batch_dims=1>(t, i)  y = Transpose<perm=[1, 0]>(g)""", ["N", 2, 3],
        {"i": [[-1], [0]]}, 18),
    "blocks added up": (
        "y = Col2Im<strides=[2, 1], dilations=[1, 2], pads=[1, 0, 0, 1]>(x, image, block)",
        ["N", 12, 9], {"image": [6, 6], "block": [2, 3]}, 18),
    "channels written in place": ("""u = Slice(x, zero, four, one, two)  q = Mul(u, u)
        t = Transpose<perm=[1, 0, 2]>(x)  v = Transpose<perm=[1, 0, 2]>(q)  s = ScatterND(t, at, v)
        y = Transpose<perm=[1, 0, 2]>(s)""", ["N", 4, 3],
        {"zero": [0], "four": [4], "one": [1], "two": [2], "at": [[3], [0]]}, 16),
    "a grid of whole numbers": ("""g = Range(start, stop, step)  c = Less(g, two)
        w = Where(c, g, two)  y = Mul(x, w)""", ["N", 4],
        {"start": 0.0, "stop": 4.0, "step": 1.0, "two": 2.0}, 16),
    "a matrix times a vector of constants": (
        "u = MatMul(w, v)  t = MatMul(v, w)  n = MatMul(v, v)  y = Sum(x, u, t, n)", ["N", 4],
        {"w": r(4, 4), "v": r(4)}, 16),
    "rows of every example written anew": ("""n = Shape<end=1>(x)  n_ = Squeeze(n)
        o = Range(k0, n_, k1)  at = Unsqueeze(o, last)  q = Mul(x, x)  y = ScatterND(x, at, q)""",
        ["N", 4, 3], {"last": [-1], "k0": 0, "k1": 1}, 16),
    "entries written into rows": ("""n = Shape<end=1>(x)  n_ = Squeeze(n)  o = Range(k0, n_, k1)
        p = Unsqueeze(o, last)  r_ = Unsqueeze(p, last)  s = Concat<axis=0>(n, two_one)
        e = Expand(r_, s)  s3 = Concat<axis=0>(n, one_two_one)  e3 = Unsqueeze(e, last)
        f = Expand(places, s3)  f2 = Squeeze(f, ax)  at = Concat<axis=2>(e, f2)
        g = Gather<axis=1>(x, turned)  q = Mul(g, g)  y = ScatterND(x, at, q)""", ["N", 4, 3],
        {"last": [-1], "k0": 0, "k1": 1, "two_one": [2, 1], "turned": [2, 0], "one_two_one": [1, 2,
        1], "places": np.asarray([[[[3], [1]]]]), "ax": [1]},
        16),
    "entries written along an axis": ("""n = Shape<end=1>(x)  s = Concat<axis=0>(n, rest)
        at = Expand(places, s)  u = Slice(x, zero, two, one)  q = Mul(u, u)
        y = ScatterElements<axis=1>(x, at, q)""", ["N", 4, 3],
        {"rest": [2, 3], "places": np.asarray([[[3, 0, 1], [1, 2, -1]]]), "zero": [0], "two": [2],
        "one": [1]},
        16),
    "entries of constants written anew": ("""a = ScatterElements<axis=1>(c, at, u)
        b = ScatterND(a, rows, v)  y = Add(x, b)""", ["N", 3, 4],
        {"c": r(3, 4), "at": [[1], [0], [3]], "u": r(3, 1), "rows": [[2]], "v": r(1, 4)}, 16),
    "constants through layers": ("""s = Softmax<axis=0>(c)  l = LayerNormalization<axis=1>(s, g, b)
        k = BatchNormalization(l, g3, b3, b3, g3)  y = Conv(x, k)""", ["N", 4, 5],
        {"c": r(3, 4, 2), "g": r(4, 2), "b": r(4, 2), "g3": np.abs(r(4)), "b3": r(4)}, 17),
    "matrices repeated for every example": ("""n = Shape<end=1>(x)  times = Concat<axis=0>(n, ones)
        t = Tile(c, times)  f = Reshape(x, flat)  s = MatMul(f, t)  u = Tile(d, times)
        v = MatMul(u, s)  y = Reshape(v, back)""", ["N", 2, 3, 4],
        {"ones": [1, 1], "c": r(2, 4, 5), "d": r(2, 1, 3), "flat": [-1, 3, 4], "back": [-1, 2, 1,
        5]},
        15),
    "gemm data bias": ("y = Gemm(x, w, x)", ["N", 4], {"w": r(4, 4)}, 13),
    "conv": ("y = Conv<pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2], group=2>(x, w, b)", I4,
        {"w": r(6, 2, 3, 2), "b": r(6)}, 11),
    "conv of every second entry": ('y = Conv<auto_pad="SAME_UPPER", strides=[2, 2]>(x, w)', I4,
        {"w": r(2, 4, 1, 1)}, 11),
    "transposed": (
        """y = ConvTranspose<strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 2],
        dilations=[2, 1], group=2>(x, w, b)""",
        I4, {"w": r(4, 3, 3, 2), "b": r(6)}, 11),
    "transposed to a size": ("y = ConvTranspose<strides=[2, 3], output_shape=[11, 17]>(x, w)", I4,
        {"w": r(4, 3, 3, 2)}, 11),
    "average pool counting": (
        "y = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1>(x)", I4, {},
        11),
    "average pool counting beyond the rim": (
        """y = AveragePool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1,
        count_include_pad=1>(x)""",
        I4, {}, 19),
    "max pool that would begin in the padding": (
        "y = MaxPool<kernel_shape=[2, 2], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1>(x)", I4,
        {}, 12),
    "conv of nothing but padding": ("y = Conv<pads=[3, 0, 4, 5]>(x, w, b)", I4,
        {"w": r(2, 4, 3, 3), "b": r(2)}, 11),
    "sum of squares": ("y = ReduceSumSquare<axes=[3]>(x)", I4, {}, 13),
    "sum of squares over nothing": ("y = ReduceSumSquare<noop_with_empty_axes=1>(x)", I4, {}, 18),
    "larger constant": ("y = Mul(x, c)", ["N", 1, 4], {"c": r(3, 4)}, 13),
    "where of a larger constant": ("y = Where(m, x, c)", ["N", 1, 4],
        {"m": np.array(True), "c": r(3, 4)}, 16),
    "where of larger infinities": ("y = Where(m, x, c)", ["N", 1, 4],
        {"m": np.array(True), "c": np.full((3, 4), -np.inf)}, 16),
    "where of infinities first": ("y = Where(m, c, x)", ["N", 1, 4],
        {"m": np.array([[False]]), "c": np.full((3, 4), -np.inf)}, 16),
    "power of a number": ("y = Pow(c, x)", I4, {"c": 1.7}, 13),
    "clip at a limit that is none": (
        "b = Constant<value_float=inf>()  y = Clip(x, a, b)", I4,
        {"a": 0.1}, 13),
    "gelu": ("y = Gelu(x)", I4, {}, 20),
    "gelu tanh": ('y = Gelu<approximate="tanh">(x)', I4, {}, 20),
    "constants computed": ("""v = Mul(w, two)  u = Transpose(v)  s = Sqrt(q)  t = Div(u, s)
        y = MatMul(x, t)""", ["N", 4], {"w": r(5, 4), "two": 2.0, "q": r(5) ** 2 + 1}, 13),
}  # fmt: skip
"""what `test_reading` draws at random is not here: plain operators, and their attributes"""


@pytest.mark.parametrize("name", CASES)
def test_operator_computes_what_onnxruntime_computes(name):
    nodes, shape, constants, opset = CASES[name]
    found = agrees(model(nodes, shape, constants, opset))
    assert found.batch_proved


@pytest.mark.parametrize("opset", [11, 17])
def test_an_empty_list_of_axes_drops_every_axis_of_size_one(opset):
    squeeze = "y = Squeeze<axes: ints = []>(x)" if opset < 13 else "y = Squeeze(x, a)"
    found = agrees(model(squeeze, [2, 1, 3, 1], {"a": np.zeros(0, int)}, opset))
    assert found.shapes[found.output] == (2, 3)


DEFAULTS = {
    "Celu": {}, "Elu": {}, "HardSigmoid": {}, "LeakyRelu": {}, "Selu": {}, "LRN": {"size": 3},
    "BatchNormalization": {}, "GroupNormalization": {"num_groups": 1}, "InstanceNormalization": {},
    "LayerNormalization": {}, "RMSNormalization": {},
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_number_that_a_node_leaves_out_is_the_one_that_onnx_declares(kind):
    """Which is a float32 number: an epsilon of 1e-5 is slightly smaller."""
    inputs = {"LayerNormalization": "x, c", "RMSNormalization": "x, c", "LRN": "x"}
    inputs |= {"InstanceNormalization": "x, d, d", "BatchNormalization": "x, d, d, d, d"}
    inputs |= {"GroupNormalization": "x, d, d"}
    declared = {
        name: item.default_value.f
        for name, item in onnx.defs.get_schema(kind, 24).attributes.items()
        if item.default_value.type == AttributeProto.FLOAT
    }
    constants = {"c": r(4), "d": np.abs(r(2))}
    x = 0.01 * r(1, 2, 3, 4)
    found = [
        output_of(program(model(item, ["N", 2, 3, 4], constants, 24)), x)
        for more in ({}, declared)
        for item in [f"y = {kind}{listed(DEFAULTS[kind] | more)}({inputs.get(kind, 'x')})"]
    ]
    np.testing.assert_array_equal(*found)


def test_moves_that_end_in_a_number_are_put_together():
    nodes = "r = Squeeze(x, a)  s = Squeeze(r, a)  y = Tanh(s)"
    found = agrees(model(nodes, [1, 1], {"a": [0]}))
    assert kinds(found) == ["Move", "tanh"]


def test_constants_between_values_are_added():
    nodes = "y = Concat<axis=1>(c, x, d, x)"
    found = agrees(model(nodes, [1, 2, 3], {"c": r(1, 1, 3), "d": r(1, 2, 3)}))
    assert kinds(found) == ["Move", "Move", "Shift", "Shift"] or kinds(found)[-2:] == ["Shift"] * 2
    assert [dict(step.op.offset.sources) for step in found.steps[-2:]] == [{"c": 1.0}, {"d": 1.0}]


REFUSED = {
    "unknown attribute": ("y = Relu<slope=1.0>(x)", ["N", 4], {}, 17),
    "attribute of another kind": ("y = Flatten<axis=1.0>(x)", ["N", 4], {}, 17),
    "another domain": ("y = com.example.Relu(x)", ["N", 4], {}, 17),
    "sum without broadcasting": ("y = Sum(x, c)", ["N", 4], {"c": r(1, 4)}, 7),
    "maximum without broadcasting": ("y = Max(x, c)", ["N", 4], {"c": 0.0}, 7),
    "old operator set": ("y = Relu(x)", ["N", 4], {}, 6),
    "future operator set": ("y = Relu(x)", ["N", 4], {}, 27),
    "step function": ("y = Sign(x)", ["N", 4], {}, 17),
    "whole numbers": ("z = Cast<to=7>(x)  y = Cast<to=1>(z)", ["N", 4], {}, 17),
    "random": ("y = RandomNormalLike(x)", ["N", 4], {}, 17),
    "weights from the data": ("y = Conv(x, x)", [1, 1, 3, 3], {}, 17),
    "indices from the data": ("i = ArgMax<axis=1>(x)  y = Gather<axis=1>(x, i)", ["N", 4], {}, 17),
    "written twice to a place": ("y = ScatterND(x, at, x)", [3, 4], {"at": [[0], [1], [1]]}, 17),
    "added to places": ('y = ScatterElements<axis=1, reduction="add">(x, at, x)', [1, 2],
        {"at": [[1, 0]]}, 17),
    "written into the first row of fewer examples": ("""two = Reshape(x, rows)
        s_ = Slice(x, zero, one, one)  u = Squeeze(s_, one)  s = Shape(u)  i = Expand(at, s)
        w = ScatterElements<axis=1>(two, i, u)  y = Reshape(w, back)""", ["N", 2, 3],
        {"rows": [-1, 3], "back": [-1, 2, 3], "zero": [0], "one": [1], "at": [[2, 0, 1]]}, 16),
    "written side by side in another order": ("""t = Transpose<perm=[1, 0, 2]>(x)
        v = Reshape(t, rows)  u = Reshape(x, rows)  v_ = Transpose<perm=[1, 0]>(v)
        u_ = Transpose<perm=[1, 0]>(u)  w = ScatterND(v_, at, u_)  w_ = Transpose<perm=[1, 0]>(w)
        b = Reshape(w_, back)  y = Transpose<perm=[1, 0, 2]>(b)""", ["N", 2, 3],
        {"rows": [-1, 3], "back": [2, -1, 3], "at": [[0], [1], [2]]}, 16),
    "written into other examples": ("y = ScatterND(x, at, x)", ["N", 4], {"at": [[0]]}, 17),
    "second output": ("z, y = MaxPool<kernel_shape=[2]>(x)", ["N", 1, 4], {}, 17),
    "no dependence": ("y = Relu(c)", ["N", 4], {"c": r(3)}, 17),
    "symbolic size behind the batch": ("y = Relu(x)", ["N", "C"], {}, 17),
    "division by zero": ("y = Div(x, c)", ["N", 4], {"c": 0.0}, 17),
    "transposed convolution with two sizes": (
        'y = ConvTranspose<auto_pad="VALID", output_shape=[9, 9]>(x, w)', I4, {"w": r(4, 2, 3, 3)},
        11),
    "response of an even size": ("y = LRN<size=2>(x)", I4, {}, 13),
    "infinite weight": ("y = Mul(x, c)", ["N", 1], {"c": np.inf}, 17),
    "not a number": ("y = Mul(x, c)", ["N", 1], {"c": np.nan}, 17),
    "limits in the wrong order": ("y = Clip(x, a, b)", ["N", 4], {"a": 1.0, "b": 0.0}, 17),
    "resize of the batch": ("y = Resize(x, , s)", I4, {"s": [2.0, 1.0, 1.0, 1.0]}, 13),
    "resize by a size that rounding decides": ("y = Resize(x, , s)", ["N", 1, 1, 10],
        {"s": [1.0, 1.0, 1.0, 0.7]}, 13),
    "resize of a region": (
        'y = Resize<coordinate_transformation_mode="tf_crop_and_resize">(x, r, s)', I4,
        {"r": [0.0, 0, 0, 0, 1, 1, 1, 1], "s": [1.0, 1.0, 2.0, 1.0]}, 13),
    "resize that keeps the ratio": (
        'y = Resize<keep_aspect_ratio_policy="not_larger", axes=[2, 3]>(x, , , z)', I4,
        {"z": [3, 4]}, 18),
    "dilated pool of automatic padding": (
        'y = MaxPool<kernel_shape=[3, 3], dilations=[1, 2], auto_pad="SAME_UPPER">(x)', I4, {}, 12),
    "dilated average of automatic padding": (
        'y = AveragePool<kernel_shape=[3, 3], dilations=[2, 1], auto_pad="SAME_LOWER">(x)', I4, {},
        19),
    "conv that leaves entries out": ('y = Conv<auto_pad="SAME_UPPER", strides=[3, 1]>(x, w)', I4,
        {"w": r(2, 4, 1, 1)}, 11),
    "average that leaves entries out": (
        'y = AveragePool<kernel_shape=[1, 1], auto_pad="SAME_LOWER", strides=[1, 4]>(x)',
        ["N", 1, 4, 8], {}, 11),
    "negative pads of a conv": ("y = Conv<pads=[-1, 0, 0, 0]>(x, w)", I4, {"w": r(2, 4, 3, 3)}, 11),
    "weight of other channels": ("y = Conv(x, w)", I4, {"w": r(2, 3, 3, 3)}, 11),
    "dropout in training": ("y = Dropout(x, p, t)", ["N", 4], {"p": 0.5, "t": np.array(True)}, 13),
    "stack of weights": ("y = MatMul(x, w)", ["N", 3, 4], {"w": r(3, 4, 4)}, 13),
    "range of a length that rounding decides": ("""r = Range(a, b, c)  s = ReduceSum<keepdims=0>(r)
        y = Mul(x, s)""", ["N", 4], {"a": -1e-30, "b": 1.0, "c": 0.5}, 17),
    "celu with no width": ("y = Celu<alpha=0.0>(x)", ["N", 4], {}, 12),
    "celu of negative width": ("y = Celu<alpha=-0.5>(x)", ["N", 4], {}, 12),
    "too large a power": ("y = Pow(x, c)", ["N", 4], {"c": 1e9}, 12),
    "minus the size of the batch": ("""s = Shape<end=1>(x)  n = Mul(s, c)  e = Equal(n, c)
        w = Where(e, a, b)  y = Mul(x, w)""", ["N", 4], {"c": [-1], "a": [1.0], "b": [3.0]}, 17),
    "no part of the size of the batch": ("""s = Shape<end=1>(x)  n = Mul(s, c)  e = Equal(n, c)
        w = Where(e, a, b)  y = Mul(x, w)""", ["N", 4], {"c": [0], "a": [1.0], "b": [3.0]}, 17),
    "huge": ("y = Expand(x, m)", ["N", 1, 1], {"m": [1, 2**20, 2**20]}, 13),
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
        inputs = "x, , s"
    else:
        sizes = [data.draw(st.integers(1, 9)) for _ in range(2)]
        constants = {"z": sizes if opset >= 18 else [1, 2, *sizes]}
        shape[0] = "N" if opset >= 18 else 1
        inputs = "x, , , z"
    try:
        agrees(model(f"y = Resize{listed(more)}({inputs})", shape, constants, opset))
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
    nodes = f"y = Resize{listed(more)}(x, {'' if opset == 10 else ', '}s)"
    shape = ["N", 2, 3, 3 if scales[1] > 1 else 5]
    with pytest.raises(Unsupported):
        program(model(nodes, shape, {"s": [1.0, 1.0, *scales]}, opset))


@pytest.mark.parametrize("lengths", [None, 2, 4, [1, 2, 3]])
def test_parts_of_a_value(lengths):
    inputs = "x" if lengths is None else "x, l"
    nodes = f"""s = SplitToSequence<axis=1>({inputs})  a = SequenceAt(s, one)
        b = SequenceAt(s, last)  y = Concat<axis=1>(b, a)"""
    constants = {"one": 0, "last": -1} | ({} if lengths is None else {"l": lengths})
    assert agrees(model(nodes, ["N", 6], constants)).batch_proved


def test_parts_of_a_batch_are_refused():
    nodes = "s = SplitToSequence<axis=0>(x)  y = SequenceAt(s, i)"
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", 6], {"i": 0}))
