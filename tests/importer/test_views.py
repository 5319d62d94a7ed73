"""What operands show of parameters, against onnxruntime."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.lower.lower import lower
from lipcert.graph.ir import Parameter
from lipcert.importer.computed import with_computed
from lipcert.importer.graph_of import Operands, operands_of
from tests.constant_chains import Chain
from tests.core.lower.cases import model, read

SEEDS = st.integers(0, 1 << 32)


def shown(proto, folder, name="w"):
    """The operand that the chain ends in, as the importer sees it; of terms, what all show."""
    stored = read(proto, folder)
    program = lower(stored, "y")
    found = Operands(program, stored, {name: Parameter(name, stored.initializers[name].dims)})
    first, *others = (found.of(slot, operand) for slot, operand in operands_of(program))
    if not others:
        return first
    assert {item.parameter for item in others} == {first.parameter} == {name}
    whole = np.arange(first.array.size).reshape(first.shape)
    places = [whole if item.places is None else item.places for item in (first, *others)]
    return replace(first, places=np.maximum.reduce(places))


def places_of(chain):
    """Which entry of the parameter stands where, −1 for none."""
    return chain.row(chain.numbers()).astype(np.int64) - 1


def check(operand, chain):
    if operand.parameter != "w":
        assert not chain.is_linear
        return
    expected = places_of(chain)
    if operand.places is None:
        np.testing.assert_array_equal(expected.reshape(-1), np.arange(chain.numbers().size))
    else:
        np.testing.assert_array_equal(operand.places, expected)


def numbers_told_apart(chain):
    return chain.numbers()


def numbers_that_are_equal(chain):
    return np.zeros(chain.shape)


@given(SEEDS)
@pytest.mark.parametrize("numbers", [numbers_told_apart, numbers_that_are_equal])
def test_places_are_those_of_onnxruntime(numbers, tmp_path_factory, seed):
    """Whatever the numbers are: zeros are equal to any arrangement of themselves."""
    chain = Chain(seed)
    folder = tmp_path_factory.mktemp("views")
    check(shown(chain.written("y", numbers(chain), chain.size), folder), chain)


def test_equal_tensors_are_told_apart(tmp_path):
    """Two parameters of the same numbers: neither shows the other."""
    chain = Chain(1, length=0)
    chain.constants["v"] = chain.numbers()
    proto = chain.written("y", chain.numbers(), chain.size)
    assert shown(proto, tmp_path).parameter == "w"
    assert shown(proto, tmp_path, "v").parameter is None


def test_a_view_of_a_one_is_seen(tmp_path):
    nodes = "c = Slice(w, a, b)  y = Add(x, c)"
    proto = model(nodes, ["N", 1], {"w": [1.0, 4.0], "a": [0], "b": [1]})
    assert with_computed(read(proto, tmp_path), {"w"}).views["c"].origin == "w"


W = [[1.0, -2.0, 3.0], [0.0, 5.0, -6.0]]


@pytest.mark.parametrize(
    ("nodes", "scale", "inverted"),
    [
        ("c = Mul(w, two)  y = Mul(x, c)", 2.0, False),
        ("c = Div(w, two)  y = Add(x, c)", 0.5, False),
        ("n = Neg(w)  c = Mul(n, two)  y = Sub(x, c)", 2.0, False),
        ("y = Sub(x, w)", -1.0, False),
        ("y = Div(x, v)", 1.0, True),
    ],
)
def test_numbers_that_a_parameter_is_multiplied_by(tmp_path, nodes, scale, inverted):
    constants = {"w": W, "v": np.asarray(W) + 10.0, "two": 2.0}
    name = "v" if inverted else "w"
    stored = read(model(nodes, ["N", 2, 3], constants), tmp_path)
    stored = with_computed(stored, {name}).model
    program = lower(stored, "y")
    found = Operands(program, stored, {name: Parameter(name, (2, 3))})
    ((slot, operand),) = operands_of(program)
    view = found.of(slot, operand)
    assert (view.parameter, view.places, view.scale) == (name, None, scale)
    assert found.is_inverted(slot) == inverted
    own = stored.initializers[name].values()
    np.testing.assert_allclose(view.array.reshape(own.shape), scale * own)


@pytest.mark.parametrize(
    "nodes",
    [
        "c = Mul(w, w)",
        "c = Mul(w, row)",
        "c = Abs(w)",
        "d = Concat<axis=0>(w, w)  c = ReduceMax<axes=[0]>(d)",
    ],
)
def test_what_is_computed_is_no_view(tmp_path, nodes):
    nodes = f"{nodes}  y = Add(x, c)"
    proto = model(nodes, ["N", 2, 3], {"w": np.abs(W), "row": [1.0, 2.0, 3.0]})
    found = with_computed(read(proto, tmp_path), {"w"})
    assert "w" in found.absorbed
    assert "c" in found.names
    assert not found.views


def test_entries_that_a_mask_leaves_out(tmp_path):
    nodes = """mask = Constant<value=float[2, 3]{1, 0, 1, 0, 1, 0}>()  b = Greater(mask, zero)
        m = Cast<to=1>(b)  c = Mul(w, m)  y = Add(x, c)"""
    stored = read(model(nodes, ["N", 2, 3], {"w": W, "zero": 0.5}), tmp_path)
    program = lower(stored, "y")
    ((slot, operand),) = operands_of(program)
    view = Operands(program, stored, {"w": Parameter("w", (2, 3))}).of(slot, operand)
    assert view.parameter == "w"
    np.testing.assert_array_equal(view.places.reshape(2, 3), [[0, -1, 2], [-1, 4, -1]])
