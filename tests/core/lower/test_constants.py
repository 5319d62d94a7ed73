"""Constants that are moved, against onnxruntime: their numbers, gains and memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from lipcert.core.budget import Limits, OverBudget, limited
from lipcert.core.lower import values
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.lower import lower
from lipcert.core.lower.values import owner
from lipcert.core.program import Operand
from lipcert.core.token_kinds import Shift
from tests.constant_chains import Chain
from tests.core.lower.cases import agrees, model, program, read


def offset(proto):
    """What is added to the input, as an operand; a gain of terms is at most the sum of theirs."""
    steps = program(proto).steps
    assert all(isinstance(step.op, Shift) for step in steps)
    first, *others = terms = [step.op.offset for step in steps]
    if not others:
        return first
    assert all(item.is_exact for item in terms)
    numbers = sum(item.lo for item in terms)
    return Operand(numbers, numbers, {"w": sum(item.sources["w"] for item in terms)})


@given(st.integers(0, 1 << 32))
def test_moved_constants_are_those_of_onnxruntime(seed):
    chain = Chain(seed)
    w = chain.draw.standard_normal(chain.shape).astype(np.float32)
    found = offset(chain.written("y", w, chain.size))
    np.testing.assert_array_equal(found.lo, chain.row(w).astype(np.float64))
    assert found.is_exact


def test_a_sum_of_constants_of_several_shapes_is_a_shift_by_each():
    """As a table of positions beside a mask of windows: what is added shows each tensor."""
    w, v = (np.random.default_rng(0).standard_normal(shape) for shape in ((2, 1, 3), (4, 3)))
    nodes = "s = Sub(w, v)  y = Add(x, s)"
    found = agrees(model(nodes, ["N", 2, 4, 3], {"w": w, "v": v}))
    shown = [step.op.offset for step in found.steps if isinstance(step.op, Shift)]
    assert [dict(item.sources) for item in shown] == [{"w": 2.0}, {"v": pytest.approx(2**0.5)}]
    assert all(item.acts is not None for item in shown)


@given(st.integers(0, 1 << 32))
def test_gains_bound_the_norms_of_moves(seed):
    """A gain g says ‖moved‖ ≤ g·‖w‖; attacked by the entry that is repeated most often."""
    chain = Chain(seed)
    (gain,) = offset(chain.written("y", chain.numbers(), chain.size)).sources.values()
    shown = chain.row(chain.numbers()).astype(np.int64).reshape(-1)
    often = int(np.bincount(shown)[1:].max(initial=0))
    assert gain**2 >= often * (1.0 - 1e-12)
    if chain.is_linear and "Pad" not in chain.operators and often:
        assert gain < np.inf


@given(st.integers(0, 1 << 32))
def test_moves_do_not_write_to_numbers_of_the_file(tmp_path_factory, seed):
    chain = Chain(seed)
    found = read(chain.written("y", chain.numbers(), chain.size), tmp_path_factory.mktemp("w"))
    lower(found, "y")
    numbers = found.initializers["w"].values()
    np.testing.assert_array_equal(numbers, chain.numbers())
    with pytest.raises(ValueError, match="read-only"):
        numbers[...] = 0.0


def test_matrices_are_not_copied(tmp_path):
    """Turned, in another shape, cut: the memory of the file's numbers, converted once."""
    w = np.arange(6.0 * 8).reshape(2, 3, 8)
    nodes = """a = Reshape(w, s)  b = Transpose<perm=[1, 0]>(a)  c = Slice(b, i, j)
        y = Gemm<transB=1>(x, c)"""
    constants = {"w": w, "s": [6, 8], "i": [1], "j": [7]}
    found = read(model(nodes, ["N", 6], constants), tmp_path)
    with limited(Limits(entries=60)):  # tables of the steps, of which there are none
        (step,) = lower(found, "y").steps
    assert owner(step.op.weight.lo) is owner(found.initializers["w"].values())
    np.testing.assert_array_equal(step.op.weight.lo, w.reshape(6, 8).T[1:7])


def test_a_matrix_of_the_file_is_read_whatever_its_size(tmp_path, monkeypatch):
    """Of more entries than a table of places may have, or than may be computed."""
    monkeypatch.setattr(values, "MAX_SIZE", 100)
    nodes = "v = Transpose<perm=[1, 0]>(w)  y = Gemm<transB=1>(x, v)"
    found = read(model(nodes, ["N", 20], {"w": np.ones((20, 30))}), tmp_path)
    with limited(Limits(entries=1)):
        (step,) = lower(found, "y").steps
    assert step.op.weight.shape == (30, 20)


# hostile files -------------------------------------------------------------------------------

BOMBS = {
    "Expand": "d = Expand(c, m)  y = Add(x, d)",
    "Tile": "d = Tile(c, t)  y = Add(x, d)",
    "ConstantOfShape": "d = ConstantOfShape(m)  y = Add(x, d)",
    "a sum": "d = Add(c, k)  e = Add(d, l)  y = Add(x, e)",
    "OneHot": "d = OneHot(i, depth, v)  y = Add(x, d)",
}


@pytest.mark.parametrize("name", BOMBS)
def test_small_files_do_not_become_large(name):
    side = 1 << 14
    constants = {
        "c": [[0.5]], "m": [side, side], "t": [side, side], "k": np.ones((side, 1)),
        "l": np.ones((1, side)), "i": np.zeros(side, np.int64), "depth": side, "v": [0.0, 1.0],
    }  # fmt: skip
    proto = model(BOMBS[name], ["N", side], constants)
    with pytest.raises(Unsupported, match="more than 33554432 entries"):
        program(proto)


def test_views_of_one_number_are_paid_when_they_are_computed_with():
    """Expanding costs nothing; what is computed from it costs what it takes."""
    wide = [1 << 5, 1 << 6]
    nodes = "v0 = Identity(x)  "
    for k in range(8):
        nodes += f"c{k} = Expand(c, m)  d{k} = Mul(c{k}, two)  v{k + 1} = Add(v{k}, d{k})  "
    constants = {"c": [0.5], "m": wide, "two": 2.0}
    proto = model(f"{nodes}y = Relu(v8)", ["N", *wide], constants)
    with limited(Limits(entries=1 << 13)), pytest.raises(OverBudget, match="8192 entries"):
        program(proto)


@pytest.mark.parametrize("kind", ["Gemm", "MatMul"])
def test_a_state_of_zeros_through_a_layer(kind):
    """One of each example, from the size of the batch: what it meets has no gradient."""
    inputs = "h, u, b" if kind == "Gemm" else "h, u"
    nodes = f"""s = Shape<end=1>(x)  sizes = Concat<axis=0>(s, four)  h = ConstantOfShape(sizes)
        o = {kind}({inputs})  y = Add(x, o)"""
    constants = {"four": [4], "u": np.arange(20.0).reshape(4, 5), "b": np.arange(5.0)}
    found = agrees(model(nodes, ["N", 5], constants))
    assert found.batch_proved
    sources = [dict(step.op.offset.sources) for step in found.steps]
    assert sources == ([{"b": 1.0}] if kind == "Gemm" else [{}])


@pytest.mark.parametrize("number", [2, 2.0])
@pytest.mark.parametrize("exponent", [3, [3], [[3]]])
def test_a_power_has_the_shape_of_base_and_exponent(number, exponent):
    nodes = """p = Pow(a, b)  s = Shape(p)  rank = Size(s)  r = Cast<to=1>(rank)  f = Cast<to=1>(p)
        z = Mul(x, f)  y = Mul(z, r)"""
    agrees(model(nodes, [1, 4], {"a": number, "b": exponent}))


def test_a_product_across_examples_is_refused():
    nodes = """s = Shape<end=1>(x)  sizes = Concat<axis=0>(four, s)  h = Expand(one, sizes)
        o = MatMul(h, u)  y = Add(x, o)"""
    constants = {"four": [4], "u": np.ones((1, 5)), "one": np.ones((1, 1))}
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", 5], constants))


SUM = "s = Add(a, b)"
CHOICE = "w = Where(e, p, q)  y = Mul(x, w)"
ROUNDED = {
    "equal to what float32 adds up": (f"{SUM}  e = Equal(s, a)  {CHOICE}", 1.0),
    "a difference that float32 loses": (f"{SUM}  d = Sub(s, a)  e = Equal(d, z)  {CHOICE}", 1.0),
    "above what float32 loses": (f"{SUM}  d = Sub(s, a)  c = Ceil(d)  y = Mul(x, c)", 0.5),
    "a whole number that float32 has not": (f"""{SUM}  i = Cast<to=7>(s)  j = Sub(i, k)
        d = Cast<to=1>(j)  y = Mul(x, d)""", 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_no_jump_has_two_readings(name):
    """Float32 adds 1 to 2²⁴ in vain."""
    nodes, more = ROUNDED[name]
    constants = {"a": 2.0**24, "b": more, "k": 1 << 24, "z": 0.0, "p": 50.0, "q": 1.0}
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", 3], constants))


ADDED = "g = Add(p, q)"
NARROW = {
    # name: (nodes, tensors, what float16 holds of the result, what real numbers make of it)
    "sum": (ADDED, {"p": np.float16(2048), "q": np.float16(1)}, "g", 2048.0, 2049.0),
    "sum and difference": (f"{ADDED}  d = Sub(g, p)",
        {"p": np.float16(2048), "q": np.float16(1)}, "d", 0.0, 1.0),
    "product": ("d = Mul(p, q)", {"p": np.float16(45), "q": np.float16(47)}, "d", 2116.0, 2115.0),
    "quantised": ("d = DequantizeLinear(p, q)", {"p": np.int8(127), "q": np.float16(17.5)}, "d",
        2222.0, 2222.5),
    "quantised in float32": ("d = DequantizeLinear<output_dtype=10>(p, q)",
        {"p": np.int16(2049), "q": np.float32(1)}, "d", 2048.0, 2049.0),
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_what_half_precision_rounds_chooses_nothing(name):
    nodes, tensors, result, narrow, wide = NARROW[name]
    nodes = f"""{nodes}  f = Cast<to=1>({result})  e = Equal(f, c)
        w = Where(e, one, two)  y = Mul(x, w)"""
    for number in (narrow, wide):
        proto = model(nodes, ["N", 3], {"c": number, "one": 1.0, "two": 2.0}, 23)
        given = [numpy_helper.from_array(np.asarray(item), key) for key, item in tensors.items()]
        proto.graph.initializer.extend(given)
        with pytest.raises(Unsupported, match="not exact"):
            program(proto)


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_constants_that_stand_there_for_each_example(turned) -> None:
    """Learned queries that look at one another, as in the decoder of a transformer."""
    nodes = f"""sizes = Shape(x)  n = Slice(sizes, zero, one)  all = Concat<axis=0>(n, ones)
        many = Expand(q, all)  keys = Transpose<perm={[2, 1, 0] if turned else [0, 2, 1]}>(many)
        scores = MatMul(many, keys)  shares = Softmax<axis=-1>(scores)  seen = MatMul(shares, many)
        y = Add(x, seen)"""
    draw = np.random.default_rng(0)
    numbers = {"q": draw.standard_normal((1, 3, 4)), "zero": [0], "one": [1], "ones": [1, 1]}
    proto = model(nodes, ("N", 3, 4), numbers)
    if turned:
        with pytest.raises(Unsupported):
            program(proto)
        return
    (step,) = agrees(proto).steps
    assert step.op.offset.slopes.keys() == {"q"}
