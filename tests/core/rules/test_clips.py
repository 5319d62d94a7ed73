"""Clips round a layer: facts behind them, and clipped cotangents."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.interval import Interval
from lipcert.core.program import CotangentClip, InputClip, Shape
from lipcert.core.rules.facts import Cotangent, Fact, Hull
from tests.core.rules.attack import holds
from tests.core.rules.cases import fact, rule


def _clipped_fact(op: InputClip, x: Fact, shape: Shape) -> Fact:
    return rule(op, [x], [shape], shape).fact()


def _clipped_cotangent(op: CotangentClip, cotangent: Cotangent) -> Cotangent:
    return rule(op, [Fact.of((1, 3))], [(1, 3)], (1, 3)).pulled(0, cotangent)


def clipped(x: np.ndarray, radius: float) -> np.ndarray:
    return x * min(1.0, radius / max(float(np.linalg.norm(x)), 1e-300))


@given(st.integers(0, 10**6), st.floats(0.01, 8.0))
def test_the_fact_behind_a_clip_holds_for_what_is_clipped(seed: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    shape = (1, *(int(n) for n in rng.integers(1, 5, size=rng.integers(1, 4))))
    known, values = fact(rng, shape)
    radius *= float(np.linalg.norm(values[0])) / 4.0
    found = _clipped_fact(InputClip(radius), known, shape)
    assert found.norm <= radius
    for x in values:
        assert holds(known, x, 1e-9)
        assert holds(found, clipped(x, radius), 1e-9)


def test_a_box_that_does_not_hold_zero_is_drawn_to_it() -> None:
    box = Interval(np.full((1, 2), 3.0), np.full((1, 2), 4.0))
    found = _clipped_fact(InputClip(1.0), Fact.of((1, 2), box=box), (1, 2))
    assert found.norm == 1.0
    assert (found.box.lo == 0.0).all()
    assert (found.box.hi == 1.0).all()
    assert holds(found, clipped(np.full((1, 2), 3.0), 1.0), 0.0)


def test_what_is_within_the_radius_is_left_alone() -> None:
    known = Fact.of((1, 2), 1.0, Interval(np.full((1, 2), 0.25), np.full((1, 2), 0.5)))
    assert _clipped_fact(InputClip(1.0), known, (1, 2)) is known


@pytest.mark.parametrize(("by_channel", "sums"), [(True, 0.5), (False, math.inf)])
def test_a_cotangent_is_clipped_in_its_norm(by_channel: bool, sums: float) -> None:
    hull = Hull(3, 1.0)
    found = _clipped_cotangent(CotangentClip(0.5, by_channel), Cotangent(math.inf, hull))
    assert found == Cotangent(0.5, hull, sums)
    assert _clipped_cotangent(CotangentClip(2.0, by_channel=False), found) == found
