"""Normalisation and its halves: runs inside and across blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcert.core.interval import Interval
from lipcert.core.program import Centre, DivideByNorm, Normalize
from lipcert.core.rules.facts import Fact
from tests.core.rules.cases import fact_behind, number, output

INF = math.inf


def test_normalisation_bounds_its_runs_inside_and_across_blocks() -> None:
    shape = (4, 6)
    found = output(Normalize((1,), 0.5, True), [Fact.of(shape, 2.0)], [shape], shape)
    assert found.row_norm == pytest.approx(math.sqrt(6 * 4 / (4 + 6 * 0.5)))
    assert found.column_norm == pytest.approx(math.sqrt(5 * 4 * 4 / (4 + 24 * 0.5)))
    assert found.max_abs == pytest.approx(math.sqrt(5 * 4 / (4 + 6 * 0.5)))


def test_division_by_a_norm_bounds_its_runs() -> None:
    op, shape = DivideByNorm((1,), number(0.5, 2), 0.1), (4, 6)
    near = Fact.of(shape, 3.0, Interval(np.zeros((1, 1)), np.full((1, 1), INF)), column_norm=0.01)
    found = output(op, [near], [shape], shape)
    assert found.row_norm == pytest.approx(0.1 * math.sqrt(6))  # six columns of norm 0.01, over 0.1
    assert found.column_norm == pytest.approx(0.1)
    assert found.box.lo.min() == 0.0
    far = output(op, [Fact.of(shape, 1e9)], [shape], shape)
    assert far.row_norm == pytest.approx(2.0)
    assert far.max_abs == pytest.approx(2.0)
    no_radius = output(DivideByNorm((1,), number(0.0, 2), 0.1), [near], [shape], shape)
    assert no_radius.norm == INF


def test_what_is_left_of_a_value_without_its_mean() -> None:
    shape = (2, 6)
    unit = Fact.of(shape, box=Interval(np.zeros((1, 1)), np.ones((1, 1))))
    found = fact_behind(Centre((1,)), unit, shape, shape, {})
    assert found.norm == pytest.approx(math.sqrt(12) / 2)  # half of the entries at each end
    assert found.max_abs == pytest.approx(1.0)
    runs = Fact.of(shape, 4.0, row_norm=3.0, column_norm=2.0)
    assert fact_behind(Centre((1,)), runs, shape, shape, {}).row_norm == 3.0
    assert fact_behind(Centre((0,)), runs, shape, shape, {}).column_norm == 2.0
    assert fact_behind(Centre((0, 1)), runs, shape, shape, {}).norm == 4.0
    alone = fact_behind(Centre((1,)), Fact.of((2, 1), 4.0), (2, 1), (2, 1), {})
    assert alone.norm == 0.0
