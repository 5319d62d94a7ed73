"""Constants computed while importing: corners of the operators' definitions."""

import numpy as np
import pytest

from lipcert.importer.arithmetic import evaluate_constant
from lipcert.importer.raw import RawNode


def node(op_type, **attributes):
    return RawNode(op_type, "", 18, "n", ("a", "b"), ("y",), attributes)


@pytest.mark.parametrize(("noop", "expected"), [(0, 10.0), (1, [1.0, 2.0, 3.0, 4.0])])
def test_no_axes_are_all_axes_unless_said(noop, expected) -> None:
    inputs = [np.array([1.0, 2.0, 3.0, 4.0]), np.zeros(0, np.int64)]
    (found,) = evaluate_constant(node("ReduceSum", keepdims=0, noop_with_empty_axes=noop), inputs)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(("fmod", "expected"), [(0, [1, -1]), (1, [-2, 2])])
def test_the_remainder_has_the_sign_of_divisor_or_dividend(fmod, expected) -> None:
    (found,) = evaluate_constant(node("Mod", fmod=fmod), [np.array([-2, 2]), np.array([3, -3])])
    assert np.array_equal(found, expected)
