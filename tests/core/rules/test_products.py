"""Products and quotients: what has no bound."""

from __future__ import annotations

import math

import pytest

from lipcert.core.program import Divide, MatMul, Multiply, Op, ReduceNorm
from lipcert.core.rules.facts import Fact
from tests.core.rules.cases import everywhere, output, stretch

INF = math.inf


def test_a_quotient_by_a_length_is_bounded() -> None:
    shape, length = (2, 3), (2, 1)
    x = Fact.of(shape, 5.0)
    divisor = output(ReduceNorm((1,), 2, 0.25), [x], [shape], length)
    assert divisor.box.lo.min() == pytest.approx(0.5)
    found = output(Divide(), [x, divisor], [shape, length], shape)
    assert found.norm == pytest.approx(10.0)


@pytest.mark.parametrize("index", [0, 1])
def test_a_divisor_that_may_be_zero_has_no_bound(index: int) -> None:
    facts = [Fact.of((3,), 1.0), Fact.of((3,), box=everywhere(-1e-9, 1.0, 1))]
    assert stretch(Divide(), index, facts, [(3,), (3,)], (3,)) == INF
    assert output(Divide(), facts, [(3,), (3,)], (3,)).norm == INF


@pytest.mark.parametrize("op", [Multiply(), MatMul()])
def test_products_of_unbounded_values_have_no_bound(op: Op) -> None:
    shape = (2, 2)
    facts = [Fact.of(shape, 1.0), Fact.of(shape)]
    assert stretch(op, 0, facts, [shape, shape], shape) == INF
    assert stretch(op, 1, facts, [shape, shape], shape) == pytest.approx(1.0)


def test_matrices_times_vectors_have_no_rule() -> None:
    facts = [Fact.of((2, 3), 1.0), Fact.of((3,), 1.0)]
    assert output(MatMul(), facts, [(2, 3), (3,)], (2,)).norm == INF
    assert stretch(MatMul(), 1, facts, [(2, 3), (3,)], (2,)) == INF
