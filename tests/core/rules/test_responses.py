"""Logarithms of sums and local responses: bounds that are as tight as their proofs say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcert.core.interval import Interval, exact
from lipcert.core.program import LocalResponse, ReduceLogSumExp
from lipcert.core.rules.base import Weights
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.steps import rule_class

POINT = Weights({})


def rule(op, x, before, shape):
    return rule_class(type(op))(
        op=op, inputs=(x,), shapes=(before,), shape=shape, weights=POINT, output="y"
    )


def test_a_logarithm_of_a_sum_is_bounded_as_tightly_as_its_proof_says():
    op = ReduceLogSumExp((0,))
    zero = rule(op, Fact.of((4,), 0.0), (4,), (1,)).fact()
    assert zero.norm == pytest.approx(math.log(4.0), rel=1e-12)
    box = Interval(np.array([-2.0, 1.0]), np.array([-1.0, 3.0]))
    found = rule(op, Fact.of((2,), box=box), (2,), (1,)).fact()
    assert found.box.lo.item() == 1.0
    assert found.box.hi.item() == pytest.approx(3.0 + math.log(2.0))
    one = rule(op, Fact.of((1,), box=exact(np.ones(1))), (1,), (1,)).fact()
    assert one.box.hi.item() == one.box.lo.item() == 1.0


def test_a_response_is_as_steep_as_its_proof_says():
    """At 0 the slope is floor^−β; the second term is 2·√size·(1 + 1/β)^−(β+1)."""
    x, shape = Fact.of((1, 2, 1)), (1, 2, 1)
    plain = LocalResponse(1, 0.0, 2.0, 0.5)
    found = rule(plain, x, shape, shape).lipschitz(0)
    assert found == pytest.approx(4.0, rel=1e-12)
    steep = rule(LocalResponse(1, 1.0, 1.0, 1.0), x, shape, shape).lipschitz(0)
    assert steep == pytest.approx(1.5, rel=1e-12)


@pytest.mark.parametrize("numbers", [(-1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 0.0)])
def test_numbers_that_no_proof_covers_leave_no_bound(numbers):
    op, shape = LocalResponse(3, *numbers), (1, 3, 1)
    x = Fact.of(shape, 1.0)
    assert rule(op, x, shape, shape).lipschitz(0) == math.inf
    assert rule(op, x, shape, shape).fact().norm == math.inf
