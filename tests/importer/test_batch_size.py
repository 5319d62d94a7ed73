"""Graphs that compute with the size of the batch: refused, and the shapes of exporters followed."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from lipcert.errors import UnsupportedModelError
from lipcert.graph.ir import BatchStatus
from lipcert.importer.load import load_model

SIZE = "s = Shape <start=0, end=1> (x)"
ONE = "one = Constant <value_ints=[1]> ()"
SEVEN = "seven = Constant <value_ints=[7]> ()"
ZERO = "zero = Constant <value_ints=[0]> ()"
IF_SEVEN = f"""
    {SIZE} {SEVEN} equal = Equal (s, seven) chosen = Squeeze (equal)
    y = If (chosen) <
        then_branch = a () => (float[N, 4] p) {{ m = ReduceMean <axes=[0]> (x) p = Add (x, m) }},
        else_branch = b () => (float[N, 4] q) {{ q = Identity (x) }}
    >"""
DEPENDENT = {
    "a branch that mixes, taken by batches of seven": IF_SEVEN,
    "another branch for large batches": IF_SEVEN.replace("Equal", "Greater"),
    "pairs of examples, for even batches": f"""
        {SIZE} two = Constant <value_ints=[2]> () three = Constant <value_ints=[3]> ()
        odd = Mod (s, two) factor = Sub (three, odd) width = Mul (factor, two)
        rest = Constant <value_ints=[-1]> () shape = Concat <axis=0> (rest, width)
        pairs = Reshape (x, shape) mixed = Softmax <axis=-1> (pairs)
        whole = Shape (x) y = Reshape (mixed, whole)""",
    "a weight for batches of seven": f"""
        {SIZE} {SEVEN} equal = Equal (s, seven) f = Cast <to=1> (equal)
        k = Constant <value_float=1000.0> () scaled = Mul (f, k) y = Mul (x, scaled)""",
    "an axis for batches of seven": f"""
        {SIZE} {SEVEN} {ONE} equal = Equal (s, seven) f = Cast <to=7> (equal)
        axis = Sub (one, f) y = CumSum (x, axis)""",
    "the mean over the batch as a sum": f"""
        {SIZE} f = Cast <to=1> (s) y = Div (x, f)""",
    "numbers up to the batch size": f"""
        {SIZE} {ZERO} {ONE} z = Squeeze (zero) o = Squeeze (one) n = Squeeze (s)
        all = Range (z, n, o) last = ReduceMax <keepdims=0> (all) f = Cast <to=1> (last)
        y = Mul (x, f)""",
    "rows of a table": f"""
        {SIZE} {ZERO} t = Exp (table) rows = Slice (t, zero, s, zero) y = Mul (x, rows)""",
    "as many features as examples": f"""
        {SIZE} {ZERO} {ONE} part = Slice (x, zero, s, one) y = ReduceSum (part, one)""",
    "a sum of ones": f"""
        {SIZE} ones = Expand (unit, s) n = ReduceSum (ones) y = Mul (x, n)""",
    "a product over the batch": f"""
        {SIZE} ones = Expand (unit, s) n = MatMul (ones, ones) y = Mul (x, n)""",
    "the first five of as many as examples": f"""
        {SIZE} {ZERO} five = Constant <value_ints=[5]> () a = Expand (unit, s) b = Sub (a, unit)
        both = Concat <axis=0> (a, b) part = Slice (both, zero, five) n = ReduceSum (part)
        y = Mul (x, n)""",
    "the first four of zeros and a one": f"""
        {SIZE} {ZERO} four = Constant <value_ints=[4]> () a = Expand (unit, s) b = Sub (a, unit)
        both = Concat <axis=0> (b, unit) part = Slice (both, zero, four) y = Mul (x, part)""",
}
SHAPES = {
    "a state of zeros": f"""
        {SIZE} four = Constant <value_ints=[4]> () shape = Concat <axis=0> (s, four)
        state = ConstantOfShape (shape) y = Add (x, state)""",
    "an expansion with -1": """
        whole = Shape (x) keep = Constant <value_ints=[-1, -1]> () same = Equal (whole, keep)
        ones = Constant <value_ints=[1, 1]> () shape = Where (same, ones, whole)
        row = Expand (unit, shape) y = Add (x, row)""",
    "the number of entries": f"""
        all = Size (x) {SIZE} n = Squeeze (s) width = Div (all, n)
        rest = Constant <value_int=-1> () a = Unsqueeze (rest, zero) b = Unsqueeze (width, zero)
        shape = Concat <axis=0> (a, b) y = Reshape (x, shape)""".replace("zero)", "place)"),
    "a first step of a recurrent network": f"""
        {SIZE} four = Constant <value_ints=[4]> () shape = Concat <axis=0> (s, four)
        state = ConstantOfShape (shape) t = Transpose (table) h = Gemm (state, t)
        g, k = Split <axis=1> (h) r = Tanh (g) u = Gemm (x, t)
        v, w = Split <axis=1> (u) y = Add (r, v)""",
    "all examples": f"{SIZE} {ZERO} y = Slice (x, zero, s, zero)",
}

LEFT = {
    "windows and back": f"""
        {SIZE} two = Constant <value_ints=[2]> () windows = Mul (s, two)
        shape = Concat <axis=0> (windows, two) parts = Reshape (x, shape) r = Relu (parts)
        again = Shape <start=0, end=1> (parts) f = Cast <to=1> (again)
        g = Cast <to=1> (two) h = Div (f, g) n = Cast <to=7> (h)
        four = Constant <value_ints=[4]> () back = Concat <axis=0> (n, four)
        y = Reshape (r, back)"""
}
"""shapes that hold the size of the batch in a way that the core does not follow"""


def saved(body, folder, opset=17):
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[N, 4] x) => (float y) {{{body}}}'
    )
    proto = parser.parse_model(text)
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("y", 1, None))
    table = np.ones((100, 4), np.float32)
    table[50:] = 9.0
    unit, place = np.ones(1, np.float32), np.zeros(1, np.int64)
    for name, array in (("table", table), ("unit", unit), ("place", place)):
        if f"{name})" in body or f"({name}," in body:
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("body", DEPENDENT.values(), ids=DEPENDENT)
def test_a_graph_that_depends_on_the_size_of_the_batch_is_refused(body, tmp_path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"LC0(07|08|28).*(batch|data|size|order)"):
        load_model(saved(body, tmp_path), trusted=True)


@pytest.mark.parametrize("body", SHAPES.values(), ids=SHAPES)
def test_shapes_may_hold_the_size_of_the_batch(body, tmp_path) -> None:
    found = load_model(saved(body, tmp_path), trusted=True)
    assert found.batch.status is BatchStatus.PROVED


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_other_computations_with_the_size_of_the_batch_are_refused(body, tmp_path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"LC0(08|28).*batch"):
        load_model(saved(body, tmp_path), trusted=True)


RESIZED = {
    "linear": ('mode="linear", coordinate_transformation_mode="asymmetric"', "1.05, 1.0"),
    "a step that 13 examples do not show": (
        'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"',
        "1.02, 1.0",
    ),
    "a shift": (
        'mode="nearest", nearest_mode="ceil",'
        ' coordinate_transformation_mode="tf_half_pixel_for_nn"',
        "1.0, 1.0",
    ),
}


@pytest.mark.parametrize(("mode", "scales"), RESIZED.values(), ids=RESIZED)
def test_the_batch_axis_is_not_resized(mode, scales, tmp_path) -> None:
    body = f"scales = Constant <value_floats=[{scales}]> () y = Resize <{mode}> (x, , scales)"
    with pytest.raises(UnsupportedModelError, match=r"batch axis|coordinates"):
        load_model(saved(body, tmp_path), trusted=True)


def test_a_crop_at_scale_one_is_a_crop(tmp_path) -> None:
    body = """
        scales = Constant <value_floats=[1.0, 1.0]> ()
        roi = Constant <value_floats=[0.0, 0.2, 1.0, 0.8]> ()
        y = Resize <mode="linear", coordinate_transformation_mode="tf_crop_and_resize">
            (x, roi, scales)"""
    with pytest.raises(UnsupportedModelError, match="coordinates"):
        load_model(saved(body, tmp_path), trusted=True)
