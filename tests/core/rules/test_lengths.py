"""Pools and lengths: what has no bound."""

from __future__ import annotations

import math

from lipcert.core.program import LpPool, MaxPool, ReduceNorm, Window
from lipcert.core.rules.facts import Fact
from tests.core.rules.cases import output, stretch

INF = math.inf


def test_windows_that_read_padding_only_have_no_bound() -> None:
    padded = Window((1,), (1,), (1,), (1,), (3,))
    facts = [Fact.of((1, 1, 1), 1.0)]
    for op in (MaxPool(padded), LpPool(padded, 2)):
        assert output(op, facts, [(1, 1, 1)], (1, 1, 3)).norm == INF
        assert stretch(op, 0, facts, [(1, 1, 1)], (1, 1, 3)) == INF


def test_lengths_with_a_negative_floor_have_no_bound() -> None:
    op, facts = ReduceNorm((0,), 2, -1.0), [Fact.of((3,), 1.0)]
    assert output(op, facts, [(3,)], (1,)).norm == INF
    assert stretch(op, 0, facts, [(3,)], (1,)) == INF
