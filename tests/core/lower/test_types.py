"""Constants that change their type: widths that become numbers, and their roots."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnxruntime as ort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from lipcert.core.check import Choices, check
from lipcert.core.interval import Interval
from lipcert.core.lower.casts import has_halves, is_held, or_rounded
from lipcert.core.lower.errors import Unsupported
from lipcert.core.token_kinds import Attention, Scale
from lipcert.core.verdict import Verdict
from lipcert.text.certificate import write_certificate
from tests.core.forged import PREMISES, Forgery
from tests.core.lower.cases import agrees, kinds, model, program, read
from tests.core.mutants.files import signed

SCALES = """shape = Shape<start=0>(x)  width = Gather<axis=0>(shape, last)  d = CastLike(width, x)
    unit = CastLike(one, x)  root = Sqrt(d)  ratio = Div(unit, root)  scale = CastLike(ratio, x)
    first = Sqrt(scale)  again = Sqrt(scale)  second = CastLike(again, x)"""
"""1/√width in two equal parts, as torch exports it"""
ATTENTION = f"""{SCALES}  q = Mul(x, first)  t = Transpose<perm=[0, 2, 1]>(x)  k = Mul(t, second)
    a = MatMul(q, k)  p = Softmax<axis=-1>(a)  z = MatMul(p, x)
    m = ReduceMean<keepdims=0>(z, tokens)  y = MatMul(m, w)"""


def attention(width: int, one: float = 1.0):
    weight = np.random.default_rng(width).standard_normal((width, 2))
    constants = {"last": [-1], "tokens": [1], "one": one, "w": weight}
    return model(ATTENTION, ["N", 3, width], constants, opset=20)


def operands(found):
    return [step.op.factor for step in found.steps if isinstance(step.op, Scale)]


def computed(proto, width: int) -> list[float]:
    """The two parts as onnxruntime computes them."""
    names = ("first", "second")
    for name in names:
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        proto.graph.output.append(info)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    found = session.run(list(names), {"x": np.zeros((1, 3, width), np.float32)})
    return [float(item.item()) for item in found]


@given(st.integers(2, 300))
def test_the_scale_of_attention_is_enclosed_as_a_number_and_as_float32(width):
    """The exact 1/⁴√d, by its fourth power, and what onnxruntime multiplies with."""
    proto = attention(width)
    scales = operands(program(proto))
    assert len(scales) == 2
    for scale, number in zip(scales, computed(proto, width), strict=True):
        low, high = (Fraction(float(end.item())) for end in (scale.lo, scale.hi))
        assert low**4 * width <= 1 <= high**4 * width
        assert low <= Fraction(number) <= high
        assert high - low <= low * Fraction(1, 1 << 22)


@pytest.mark.parametrize("width", [3, 4, 6])
def test_attention_with_a_computed_scale_is_one_step_of_the_right_value(width):
    found = agrees(attention(width))
    assert found.batch_proved
    assert "Attention" in kinds(found)
    assert [step.op.scale for step in found.steps if isinstance(step.op, Attention)] == [1.0]


@pytest.mark.parametrize("engine", ["float", "exact"])
def test_a_certificate_holds_for_its_scale_and_for_no_larger_one(engine, tmp_path):
    path, other = tmp_path / "model.onnx", tmp_path / "other.onnx"
    path.write_bytes(attention(5).SerializeToString())
    other.write_bytes(attention(5, one=1.125).SerializeToString())
    premises = replace(PREMISES, input_norm=1.0, input_box=None)
    certificate = Forgery(path, ["w"], premises).certificate()
    choices = Choices(engine=engine)
    report = check(write_certificate(certificate), path, choices)
    assert report.verdict is Verdict.CONDITIONAL
    report = check(write_certificate(certificate), other, choices)
    assert report.verdict is Verdict.INVALID
    forged = signed(certificate, other.read_bytes(), tmp_path)
    report = check(write_certificate(forged), other, choices)
    assert report.verdict is Verdict.INVALID
    assert any("first" in reason or "q" in reason for reason in report.reasons)


# what is refused ------------------------------------------------------------------------------

TO_REAL = "r = CastLike(c, x)  y = Mul(x, r)"
REFUSED = {
    "a whole number that float32 does not hold": (TO_REAL, {"c": [(1 << 24) + 1]}),
    "the size of the batch": (f"c = Shape<start=0, end=1>(x)  {TO_REAL}", {}),
    "real numbers as whole ones": ("r = CastLike(c, i)  y = Gather<axis=1>(x, r)",
        {"c": 1.5, "i": [0]}),
    "a half-precision copy of the data": ("""h = Cast<to=10>(x)  r = CastLike(c, h)  m = Mul(h, r)
        y = Cast<to=1>(m)""", {"c": 0.1}),
    "a half-precision tensor beside it": (
        """h = Constant<value=float16[1]{15360}>()  r = CastLike(c, h)  f = Cast<to=1>(r)
        y = Mul(x, f)""", {"c": 0.1}),
    "an infinite number in float32": ("s = Mul(c, c)  r = CastLike(s, x)  y = Mul(x, r)",
        {"c": 1e30}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_may_change_more_than_rounding_is_refused(name):
    nodes, constants = REFUSED[name]
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", 4], constants, opset=19))


def test_whole_numbers_and_truth_values_become_real_exactly():
    for number in (7, 1 << 24, True):
        found = program(model(TO_REAL, ["N", 4], {"c": np.array([number])}, opset=19))
        (factor,) = operands(found)
        assert factor.is_exact
        assert factor.lo.item() == float(number)


def test_a_half_precision_file_keeps_numbers_that_every_type_holds():
    nodes = "h = Cast<to=10>(x)  r = CastLike(c, h)  m = Mul(h, r)"
    found = program(model(f"{nodes}  y = Cast<to=1>(m)", ["N", 4], {"c": 0.375}, opset=19))
    assert [item.lo.item() for item in operands(found)] == [0.375]


# types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["nowhere", "input", "initializer", "attribute", "cast"])
def test_half_precision_is_found_wherever_it_enters(place, tmp_path):
    nodes = "y = Relu(x)"
    if place == "cast":
        nodes = "h = Cast<to=16>(x)  y = Cast<to=1>(h)"
    proto = model(nodes, ["N", 4], opset=19)
    half = numpy_helper.from_array(np.ones(1, np.float16), "half")
    if place == "input":
        proto.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    if place == "initializer":
        proto.graph.initializer.append(half)
    if place == "attribute":
        proto.graph.node.append(helper.make_node("Constant", [], ["h"], value=half))
    assert has_halves(read(proto, tmp_path)) is (place != "nowhere")


NUMBERS = st.one_of(
    st.floats(allow_nan=False),
    st.floats(allow_nan=False, width=32),
    st.floats(allow_nan=False, width=16),
    st.integers(-300, 300).map(float),
)


@given(NUMBERS, st.booleans())
def test_a_number_is_held_where_torch_gives_it_back(number, halves):
    exact = torch.tensor(number, dtype=torch.float64)
    types = [torch.float32, *((torch.float16, torch.bfloat16) if halves else ())]
    same = all(bool(exact.to(kind).double() == exact) for kind in types)
    assert is_held(np.asarray(number), halves=halves) is same


@given(st.tuples(*3 * (st.floats(allow_nan=False),)))
def test_rounded_numbers_lie_in_the_wider_interval(numbers):
    low, number, high = sorted(numbers)
    found = or_rounded(Interval(np.asarray(low), np.asarray(high)))
    rounded = float(torch.tensor(number, dtype=torch.float64).float().double())
    assert found.lo <= min(number, rounded)
    assert max(number, rounded) <= found.hi
