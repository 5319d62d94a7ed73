"""Operands hold the numbers that they were made of, whatever becomes of the array."""

import numpy as np
import pytest

from lipcert.graph.ir import Operand


def test_an_array_that_can_be_written_to_is_copied() -> None:
    array = np.arange(6.0)
    view = array[:3]
    view.setflags(write=False)
    operand, seen = Operand(array), Operand(view)
    array[:] = 7.0
    assert operand.array.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert seen.array.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        operand.array[0] = 1.0


def test_a_read_only_array_is_shared() -> None:
    array = np.arange(6.0)
    array.setflags(write=False)
    assert Operand(array).array is array
    assert np.shares_memory(Operand(array.reshape(2, 3)).array, array)


def test_other_types_and_orders_are_converted() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    array.setflags(write=False)
    found = Operand(array).array
    assert found.dtype == np.float64
    assert found.flags.c_contiguous
    assert found.tolist() == array.tolist()
    with pytest.raises(ValueError, match="NaN or infinity"):
        Operand(np.array([np.inf]))
