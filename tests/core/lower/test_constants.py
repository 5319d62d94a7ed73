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
from lipcert.core.program import Dense, Operand
from lipcert.core.token_kinds import Shift
from tests.constant_chains import Chain
from tests.core.lower.cases import agrees, model, node, program
from tests.core.models import read


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
    nodes = [node("Sub", "w v", "s"), node("Add", "x s")]
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
    nodes = [
        node("Reshape", "w s", "a"),
        node("Transpose", "a", "b", perm=[1, 0]),
        node("Slice", "b i j", "c"),
        node("Gemm", "x c", "y", transB=1),
    ]
    constants = {"w": w, "s": [6, 8], "i": [1], "j": [7]}
    found = read(model(nodes, ["N", 6], constants), tmp_path)
    with limited(Limits(entries=60)):  # tables of the steps, of which there are none
        (step,) = lower(found, "y").steps
    assert isinstance(step.op, Dense)
    assert owner(step.op.weight.lo) is owner(found.initializers["w"].values())
    np.testing.assert_array_equal(step.op.weight.lo, w.reshape(6, 8).T[1:7])


def test_a_matrix_of_the_file_is_read_whatever_its_size(tmp_path, monkeypatch):
    """Of more entries than a table of places may have, or than may be computed."""
    monkeypatch.setattr(values, "MAX_SIZE", 100)
    nodes = [node("Transpose", "w", "v", perm=[1, 0]), node("Gemm", "x v", "y", transB=1)]
    found = read(model(nodes, ["N", 20], {"w": np.ones((20, 30))}), tmp_path)
    with limited(Limits(entries=1)):
        (step,) = lower(found, "y").steps
    assert step.op.weight.shape == (30, 20)


# hostile files -------------------------------------------------------------------------------

BOMBS = {
    "Expand": [node("Expand", "c m", "d"), node("Add", "x d", "y")],
    "Tile": [node("Tile", "c t", "d"), node("Add", "x d", "y")],
    "ConstantOfShape": [node("ConstantOfShape", "m", "d"), node("Add", "x d", "y")],
    "a sum": [node("Add", "c k", "d"), node("Add", "d l", "e"), node("Add", "x e", "y")],
    "OneHot": [node("OneHot", "i depth v", "d"), node("Add", "x d", "y")],
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
    nodes = []
    for k in range(8):
        nodes.append(node("Expand", "c m", f"c{k}"))
        nodes.append(node("Mul", f"c{k} two", f"d{k}"))
        nodes.append(node("Add", f"{'x' if k == 0 else f'v{k - 1}'} d{k}", f"v{k}"))
    proto = model([*nodes, node("Relu", "v7", "y")], ["N", *wide], {
        "c": [0.5], "m": wide, "two": 2.0,
    })  # fmt: skip
    with limited(Limits(entries=1 << 13)), pytest.raises(OverBudget, match="8192 entries"):
        program(proto)


@pytest.mark.parametrize("kind", ["Gemm", "MatMul"])
def test_a_state_of_zeros_through_a_layer(kind):
    """One of each example, from the size of the batch: what it meets has no gradient."""
    last = node("Gemm", "h u b", "o") if kind == "Gemm" else node("MatMul", "h u", "o")
    nodes = [
        node("Shape", "x", "s", end=1),
        node("Concat", "s four", "sizes", axis=0),
        node("ConstantOfShape", "sizes", "h"),
        last,
        node("Add", "x o", "y"),
    ]
    constants = {"four": [4], "u": np.arange(20.0).reshape(4, 5), "b": np.arange(5.0)}
    found = agrees(model(nodes, ["N", 5], constants))
    assert found.batch_proved
    sources = [dict(step.op.offset.sources) for step in found.steps]
    assert sources == ([{"b": 1.0}] if kind == "Gemm" else [{}])


@pytest.mark.parametrize("number", [2, 2.0])
@pytest.mark.parametrize("exponent", [3, [3], [[3]]])
def test_a_power_has_the_shape_of_base_and_exponent(number, exponent):
    nodes = [
        node("Pow", "a b", "p"),
        node("Shape", "p", "s"),
        node("Size", "s", "rank"),
        node("Cast", "rank", "r", to=1),
        node("Cast", "p", "f", to=1),
        node("Mul", "x f", "z"),
        node("Mul", "z r"),
    ]
    agrees(model(nodes, [1, 4], {"a": number, "b": exponent}))


def test_a_product_across_examples_is_refused():
    nodes = [
        node("Shape", "x", "s", end=1),
        node("Concat", "four s", "sizes", axis=0),
        node("Expand", "one sizes", "h"),
        node("MatMul", "h u", "o"),
        node("Add", "x o", "y"),
    ]
    constants = {"four": [4], "u": np.ones((1, 5)), "one": np.ones((1, 1))}
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", 5], constants))


SUM = node("Add", "a b", "s")
CHOICE = [node("Where", "e p q", "w"), node("Mul", "x w")]
ROUNDED = {
    "equal to what float32 adds up": ([SUM, node("Equal", "s a", "e"), *CHOICE], 1.0),
    "a difference that float32 loses": (
        [SUM, node("Sub", "s a", "d"), node("Equal", "d z", "e"), *CHOICE], 1.0),
    "above what float32 loses": (
        [SUM, node("Sub", "s a", "d"), node("Ceil", "d", "c"), node("Mul", "x c")], 0.5),
    "a whole number that float32 has not": (
        [SUM, node("Cast", "s", "i", to=7), node("Sub", "i k", "j"), node("Cast", "j", "d", to=1),
         node("Mul", "x d")], 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_no_jump_has_two_readings(name):
    """Float32 adds 1 to 2²⁴ in vain."""
    nodes, more = ROUNDED[name]
    constants = {"a": 2.0**24, "b": more, "k": 1 << 24, "z": 0.0, "p": 50.0, "q": 1.0}
    with pytest.raises(Unsupported):
        program(model(nodes, ["N", 3], constants))


ADDED = [node("Add", "p q", "g"), node("Sub", "g p", "d")]
NARROW = {
    # name: (nodes, tensors, what float16 holds of the result, what real numbers make of it)
    "sum": (ADDED[:1], {"p": np.float16(2048), "q": np.float16(1)}, "g", 2048.0, 2049.0),
    "sum and difference": (ADDED, {"p": np.float16(2048), "q": np.float16(1)}, "d", 0.0, 1.0),
    "product": (
        [node("Mul", "p q", "d")], {"p": np.float16(45), "q": np.float16(47)}, "d", 2116.0, 2115.0),
    "quantised": (
        [node("DequantizeLinear", "p q", "d")], {"p": np.int8(127), "q": np.float16(17.5)},
        "d", 2222.0, 2222.5),
    "quantised in float32": (
        [node("DequantizeLinear", "p q", "d", output_dtype=10)],
        {"p": np.int16(2049), "q": np.float32(1)}, "d", 2048.0, 2049.0),
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_what_half_precision_rounds_chooses_nothing(name):
    nodes, tensors, result, narrow, wide = NARROW[name]
    nodes = [*nodes, node("Cast", result, "f", to=1), node("Equal", "f c", "e")]
    nodes += [node("Where", "e one two", "w"), node("Mul", "x w")]
    for number in (narrow, wide):
        proto = model(nodes, ["N", 3], {"c": number, "one": 1.0, "two": 2.0}, 23)
        given = [numpy_helper.from_array(np.asarray(item), key) for key, item in tensors.items()]
        proto.graph.initializer.extend(given)
        with pytest.raises(Unsupported, match="not exact"):
            program(proto)


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_constants_that_stand_there_for_each_example(turned) -> None:
    """Learned queries that look at one another, as in the decoder of a transformer."""
    nodes = [
        node("Shape", "x", "sizes"),
        node("Slice", "sizes zero one", "n"),
        node("Concat", "n ones", "all", axis=0),
        node("Expand", "q all", "many"),
        node("Transpose", "many", "keys", perm=[2, 1, 0] if turned else [0, 2, 1]),
        node("MatMul", "many keys", "scores"),
        node("Softmax", "scores", "shares", axis=-1),
        node("MatMul", "shares many", "seen"),
        node("Add", "x seen"),
    ]
    draw = np.random.default_rng(0)
    numbers = {"q": draw.standard_normal((1, 3, 4)), "zero": [0], "one": [1], "ones": [1, 1]}
    proto = model(nodes, ("N", 3, 4), numbers)
    if turned:
        with pytest.raises(Unsupported):
            program(proto)
        return
    (step,) = agrees(proto).steps
    assert step.op.offset.slopes.keys() == {"q"}
