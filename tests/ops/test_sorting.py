"""Sorting: norms, distances and order statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.facts import Bound, ValueFacts
from lipcert.interval import Interval
from lipcert.norms.operator_norm import Tier
from lipcert.ops.sorting import Sort
from lipcert.scope import PointScope
from lipcert.upper import Upper

POINT = PointScope(Tier.FAST)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), axis=st.integers(0, 1), descending=st.booleans())
def test_sorting_keeps_norms_and_never_increases_distances(
    seed: int, axis: int, descending: bool
) -> None:
    rng = np.random.default_rng(seed)
    op = Sort(axis, descending)
    x, z = np.round(rng.normal(size=(2, 3, 4)), 1)
    first, second = op.evaluate(np.stack([x, z]))
    assert np.linalg.norm(first) == pytest.approx(np.linalg.norm(x))
    assert np.linalg.norm(first - second) <= np.linalg.norm(x - z) + 1e-12
    low, high = np.minimum(x, z), np.maximum(x, z)
    inside = low + (high - low) * rng.random((50, 3, 4))
    known = ValueFacts.of((3, 4), Bound(Upper(100.0), "test"), Interval(low, high))
    box = op.output_facts([known], POINT).box
    ordered = op.evaluate(inside)
    assert np.all((box.lo <= ordered) & (ordered <= box.hi))
    np.testing.assert_array_equal(box.lo, op.evaluate(low[None])[0])
    np.testing.assert_array_equal(box.hi, op.evaluate(high[None])[0])


def test_the_axis_must_exist() -> None:
    with pytest.raises(ValueError, match="does not exist"):
        Sort(1).output_shape([(3,)])
    with pytest.raises(ValueError, match="front"):
        Sort(-1)
