"""The farthest examples are admissible, and no admissible example is farther."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.core.interval import norm_up
from tests.domains import box_and_ball, side_by_side

BOXES = [None, (0.0, 1.0), (-1.0, 1.0), (0.2, 0.9), (-0.7, -0.1)]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("radius", [0.8, 1.7, 30.0])
def test_farthest(box, radius):
    rng = np.random.default_rng(0)
    found = box_and_ball(6, radius, box)
    low, high = box or (-radius, radius)
    directions = rng.standard_normal((5, 3, 2))
    directions[0, 0, 0] = 0.0
    points = found.farthest(directions)
    others = rng.uniform(low, high, (20000, 3, 2))
    others = others[np.sqrt(np.sum(others**2, axis=(1, 2))) <= radius]
    for direction, x in zip(directions, points, strict=True):
        example = found.admitted(x)
        assert norm_up(example) <= radius
        assert np.all((example >= low) & (example <= high))
        reached = np.max(np.sum(direction * others, axis=(1, 2)), initial=-math.inf)
        assert np.sum(direction * example) >= reached - 1e-6


def test_no_direction():
    assert np.all(box_and_ball(6, 2.0).farthest(np.zeros((1, 3, 2))) == 0.0)


@given(
    ends=st.tuples(st.integers(-3, 1), st.integers(1, 4)),
    radius=st.floats(3.0, 9.0),
    scale=st.floats(0.1, 20.0),
    seed=st.integers(0, 2**16),
)
def test_whole_numbers_stay_whole(ends, radius, scale, seed):
    """Whatever is drawn or projected is admissible up to rounding, and then stays where it is."""
    rng = np.random.default_rng(seed)
    low, high = map(float, ends)
    whole = np.array([True, False, True, True, False, False])
    domain = replace(box_and_ball(6, radius, (low, high)), whole=whole)
    x = scale * rng.standard_normal((9, 6))
    found = [domain.projected(x), domain.farthest(x), domain.drawn(9, rng), domain.uniform(9, rng)]
    for points in found:
        assert (points[:, whole] == np.rint(points[:, whole])).all()
        assert np.linalg.norm(points, axis=1).max() <= radius * (1.0 + 1e-12)
        assert points.min() >= low
        assert points.max() <= high
        np.testing.assert_allclose(domain.projected(points), points, rtol=1e-9)


def test_outside():
    assert box_and_ball(6, 2.0).admitted(np.full((3, 2), 2.0)) is None


def test_several_inputs_are_each_as_long_as_they_may_be():
    """Parts of an example have domains of their own; one of all together draws both in."""
    ends = np.array([[0.0, 0, 1, 1, 1]]), np.array([[1.0, 1, 4, 4, 4]])
    inputs = [(2, 0.5, (0.0, 1.0)), (3, math.inf, (1.0, 4.0))]
    for norm in (math.inf, 3.0):
        whole = side_by_side(inputs, norm)
        directions = np.random.default_rng(0).standard_normal((20, 1, 5))
        for x in whole.farthest(directions):
            example = whole.admitted(x)
            assert np.linalg.norm(example[:, :2]) <= 0.5
            assert np.linalg.norm(example) <= norm
            assert (example >= ends[0]).all()
            assert (example <= ends[1]).all()
        (best,) = whole.farthest(np.ones((1, 1, 5)))
        length = np.linalg.norm(best)
        assert length == pytest.approx(min(norm, math.sqrt(0.25 + 48.0)), rel=0.2)
        assert whole.admitted(np.array([[0.5, 0.5, 1.0, 1.0, 1.0]])) is None
