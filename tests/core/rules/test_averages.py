"""AveragePool: the norm of overlapping windows, and means that stay non-negative."""

from __future__ import annotations

import math

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.program import AveragePool, ReduceSum, Window
from lipcert.core.rules.facts import Fact
from tests.core.rules.cases import fact_behind, rule


def test_attained_overlapping_average() -> None:
    """3 taps, stride 2: AAᵀ is tridiagonal with 1/3 and 1/9, of norm 1/3 + 2/9·cos(π/(n + 1))."""
    pool = AveragePool(Window((3,), (2,), (1,), (0,), (40,)), counts_padding=True)
    true = math.sqrt(1 / 3 + 2 / 9 * math.cos(math.pi / 41))
    bound = rule(pool, [], [(1, 5, 81)], (1, 5, 40)).lipschitz(0)
    assert true <= bound <= true * (1 + 1e-9)


def test_nonnegative_sums_and_means_stay_nonnegative() -> None:
    box = Interval(np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    x = Fact.of((1, 3, 6), box=box)
    assert (
        fact_behind(ReduceSum((2,), mean=True), x, (1, 3, 6), (1, 3, 1), {}).box.lo == 0.0
    ).all()
    pool = AveragePool(Window((2,), (2,), (1,), (0,), (3,)), counts_padding=False)
    assert (fact_behind(pool, x, (1, 3, 6), (1, 3, 3), {}).box.lo == 0.0).all()
