"""Logarithms of sums and local responses: facts and Jacobians, with torch as the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lipcert.core.interval import Interval, exact
from lipcert.core.program import LocalResponse, ReduceLogSumExp
from lipcert.core.rules.facts import Fact
from lipcert.core.rules.table import rule_class
from lipcert.core.rules.weights import Point
from tests.core.rules.attack import SLACK, holds, members
from tests.core.rules.cases import fact
from tests.core.rules.evaluate import spectral

POINT = Point({})


def rule(op, x, before, shape):
    return rule_class(type(op))(
        op=op, inputs=(x,), shapes=(before,), shape=shape, weights=POINT, output="y"
    )


def _log_sum_exp(rng):
    shape = tuple(int(n) for n in rng.integers(1, 5, size=3))
    axes = tuple(axis for axis in range(3) if rng.random() < 0.6) or (1,)
    after = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    return ReduceLogSumExp(axes), shape, after, lambda x: torch.logsumexp(x, axes, keepdim=True)


def _response(rng):
    shape = (1, *(int(n) for n in rng.integers(1, 5, size=2)))
    numbers = (
        rng.choice([0.0, 0.5, 3.0]),
        rng.choice([0.0, 0.5, 1.0, 2.5]),
        rng.choice([0.3, 2.0]),
    )
    op = LocalResponse(int(rng.choice([1, 3, 5])), *map(float, numbers))

    def compute(x):
        return torch.nn.functional.local_response_norm(x, op.size, op.strength, op.power, op.floor)

    return op, shape, shape, compute


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("case", [_log_sum_exp, _response])
def test_no_member_breaks_a_bound(case, seed):
    rng = np.random.default_rng([seed, 5])
    op, shape, after, compute = case(rng)
    x, known = fact(rng, shape)
    found = rule(op, x, shape, after).fact()
    stretch = rule(op, x, shape, after).lipschitz(0)
    for (point,) in members(rng, [x], [known], compute):
        tensor = torch.tensor(point)
        assert holds(found, compute(tensor).numpy(), SLACK)
        jacobian = torch.autograd.functional.jacobian(compute, tensor)
        flat = jacobian.reshape(math.prod(after), -1)
        assert spectral(flat) <= stretch * (1 + SLACK) + 1e-12


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
