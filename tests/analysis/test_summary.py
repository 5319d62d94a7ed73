"""What the steps of a network are called in a report."""

import numpy as np
import pytest

from lipcert.analysis.pipeline import kind_of
from lipcert.core.kinds import Concat, ReduceMax, ReduceNorm
from lipcert.core.program import Activation, Move
from lipcert.core.token_kinds import ReduceSum, Softmax


@pytest.mark.parametrize(
    ("moved", "kind"),
    [
        (lambda x: x.reshape(3, 2), "Reshape"),
        (lambda x: x.T, "Permute"),
        (lambda x: x[:, ::-1], "Permute"),
        (lambda x: x[1:], "Slice"),
        (lambda x: x[:, 1:], "Slice"),
        (lambda x: x[[0, 1, 1]], "Gather"),
        (lambda x: x[[1, 0], :2], "Gather"),
        (lambda x: np.pad(x, 1, constant_values=-1), "Pad"),
        (lambda x: x[:0], "Slice"),
    ],
)
def test_a_move_is_called_by_what_it_does(moved, kind):
    x = np.arange(6).reshape(2, 3)
    assert kind_of(Move(np.ascontiguousarray(moved(x))), x.size) == kind


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (Activation("leaky_relu", (0.1,)), "LeakyRelu"),
        (ReduceSum((1,), mean=True), "ReduceMean"),
        (ReduceSum((1,), mean=False), "ReduceSum"),
        (ReduceMax((1,), minimum=True), "ReduceMin"),
        (ReduceMax((1,), minimum=False), "ReduceMax"),
        (ReduceNorm((1,), 2, 0.0), "ReduceL2"),
        (Softmax(1, logarithm=True), "LogSoftmax"),
        (Concat(1), "Concat"),
    ],
)
def test_an_operation_has_the_name_that_frameworks_give_it(op, kind):
    assert kind_of(op, 6) == kind
