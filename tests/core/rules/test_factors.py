"""Factors and offsets: slopes, and the longest part that one of them meets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcert.core.interval import exact
from lipcert.core.program import BatchNorm, Move, Normalize, PRelu, Scale, Shape
from lipcert.core.rules.facts import Cotangent, Fact
from tests.core.rules.cases import POINT, behind_one, exactly, ones, rule, shares


def test_slopes_are_the_factors() -> None:
    op = BatchNorm(*[exactly([2.0, 3.0]) for _ in range(4)])
    found = rule(op, [Fact.of((1, 2, 4))], [(1, 2, 4)], (1, 2, 4)).slopes()
    assert found is not None
    assert found.hi.ravel() == pytest.approx([4.0, 9.0])


@pytest.mark.parametrize(("groups", "bound"), [(2, 2.0), (1, 5.0), (4, 4.0)])
def test_factors_of_channels_within_groups(groups: int, bound: float) -> None:
    """4 channels of 3×3; a run behind the move holds one group of channels, or a part of one."""
    shape, channels = (1, 4, 3, 3), (1, 4, 1, 1)
    before = (1, groups, 36 // groups) if groups < 4 else (1, 12, 3)
    fact = Fact.of(before, 5.0, row_norm=2.0)
    behind = behind_one(Move(np.arange(36).reshape(shape)), fact, before)
    x = Fact.of(shape, 4.0 if groups == 4 else 5.0)
    op = Scale(ones(channels, "s"))
    found = rule(op, [x], [shape], shape, POINT, behind).gradients(Cotangent(1.0))
    assert dict(found)["s"] == (min(bound, 2.0) if groups == 1 else bound)


def test_factors_of_what_a_move_repeats() -> None:
    """Every entry of a run of norm 2 stands twice where one factor meets it: √2·2."""
    before, shape = (1, 3, 4), (1, 3, 8)
    move = Move(np.tile(np.arange(12).reshape(before), (1, 1, 2)))
    behind = behind_one(move, Fact.of(before, 3.0, row_norm=2.0), before)
    op, x = Scale(ones((1, 3, 1), "s")), Fact.of(shape, 50.0)
    found = rule(op, [x], [shape], shape, POINT, behind).gradients(Cotangent(1.0))
    assert dict(found)["s"] == pytest.approx(2.0 * math.sqrt(2), rel=1e-15)


@pytest.mark.parametrize(("axes", "bound"), [((2, 3), 3.0), ((1, 2, 3), 6.0), ((1,), 50.0)])
def test_factors_behind_a_normalisation(axes: Shape, bound: float) -> None:
    """√n for blocks of n entries that hold all that one factor meets."""
    shape = (1, 4, 3, 3)
    behind = behind_one(Normalize(axes, 1e-5, centred=True), Fact.of(shape), shape)
    op, x = Scale(ones((1, 4, 1, 1), "s")), Fact.of(shape, 50.0)
    found = rule(op, [x], [shape], shape, POINT, behind).gradients(Cotangent(1.0))
    assert dict(found)["s"] == bound


def test_slopes_see_negative_numbers_only() -> None:
    box = exact(np.array([[3.0, -4.0, 5.0]]))
    x = Fact.of((1, 3), box=box)
    assert shares(PRelu(ones((1, 1), "s")), x, (1, 3), (1, 3))["s"] == pytest.approx(4.0)


def test_runs_bound_what_one_factor_per_token_meets() -> None:
    x = Fact.of((1, 5, 4), 8.0, row_norm=7.5)
    assert shares(Scale(ones((1, 5, 1), "s")), x, (1, 5, 4), (1, 5, 4))["s"] == 7.5
    assert shares(Scale(ones((1, 1, 4), "s")), x, (1, 5, 4), (1, 5, 4))["s"] == 8.0
