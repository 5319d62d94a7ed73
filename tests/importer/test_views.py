"""What operands show of parameters, by memory and by marks, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.lower.lower import lower
from lipcert.graph.ir import Parameter
from lipcert.importer import computed, memory, views
from lipcert.importer.computed import with_computed
from lipcert.importer.views import Operands, operands_of
from tests.constant_chains import Chain
from tests.core.lower.cases import model, node
from tests.core.models import read

SEEDS = st.integers(0, 1 << 32)


def shown(proto, folder, name="w"):
    """The operand that the chain ends in, as the importer sees it."""
    stored = read(proto, folder)
    program = lower(stored, "y")
    found = Operands(program, stored, {name: Parameter(name, stored.initializers[name].dims)})
    ((slot, operand),) = operands_of(program)
    return found.of(slot, operand)


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


@given(SEEDS)
def test_memory_and_marks_agree(tmp_path_factory, seed):
    chain = Chain(seed)
    proto, folder = chain.written("y", chain.numbers(), chain.size), tmp_path_factory.mktemp("w")
    by_memory = shown(proto, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "lies_in", lambda array, tensor: False)
        by_marks = shown(proto, folder)
    assert by_memory.parameter == by_marks.parameter
    assert (by_memory.places is None) == (by_marks.places is None)
    if by_memory.places is not None:
        np.testing.assert_array_equal(by_memory.places, by_marks.places)
    assert by_memory.gain == by_marks.gain


@given(SEEDS)
def test_computed_tensors_are_the_same_without_memory(tmp_path_factory, seed):
    chain = Chain(seed)
    numbers = chain.numbers() + 0.5  # unlike the numbers that tell views otherwise
    stored = read(chain.written("y", numbers, chain.size), tmp_path_factory.mktemp("computed"))
    found = with_computed(stored, {"w"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computed, "lies_in", lambda array, tensor: False)
        other = with_computed(stored, {"w"})
    assert found.names == other.names
    assert found.absorbed == other.absorbed
    assert found.views.keys() == other.views.keys()
    for name, view in found.views.items():
        assert (view.origin, view.scale) == (other.views[name].origin, other.views[name].scale)
        np.testing.assert_array_equal(view.array, other.views[name].array)


def test_views_need_no_second_lowering(tmp_path, monkeypatch):
    chain = Chain(0, length=0)
    monkeypatch.setattr(views, "lower", None)
    operand = shown(chain.written("y", chain.numbers(), chain.size), tmp_path)
    assert operand.parameter == "w"


def test_equal_tensors_are_told_apart(tmp_path):
    """Two parameters of the same numbers: neither lies in the other."""
    chain = Chain(1, length=0)
    chain.constants["v"] = chain.numbers()
    stored = read(chain.written("y", chain.numbers(), chain.size), tmp_path).initializers
    w, v = stored["w"], stored["v"]
    assert memory.lies_in(w.values().T, w)
    assert not memory.lies_in(w.values(), v)
    assert not memory.lies_in(w.values().copy(), w)


def test_a_view_of_a_one_is_seen(tmp_path):
    """The marks 1, 2, 3, … have a one in the same place."""
    nodes = [node("Slice", "w a b", "c"), node("Add", "x c", "y")]
    proto = model(nodes, ["N", 1], {"w": [1.0, 4.0], "a": [0], "b": [1]})
    assert with_computed(read(proto, tmp_path), {"w"}).views["c"].origin == "w"
