"""The farthest examples are admissible, and no admissible example is farther."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcert.core.interval import Interval, norm_up
from lipcert.core.rules.facts import Fact
from lipcert.search.lower_bounds import Domain

BOXES = [None, (0.0, 1.0), (-1.0, 1.0), (0.2, 0.9), (-0.7, -0.1)]


def domain(box, radius, shape=(3, 2)):
    interval = None
    if box is not None:
        interval = Interval(np.full((1, 1), box[0]), np.full((1, 1), box[1]))
    return Domain(shape, Fact.of(shape, radius, interval), np.zeros(shape, bool))


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("radius", [0.8, 1.7, 30.0])
def test_farthest(box, radius):
    rng = np.random.default_rng(0)
    found = domain(box, radius)
    low, high = box or (-radius, radius)
    directions = rng.standard_normal((5, 3, 2))
    directions[0, 0, 0] = 0.0
    points = found.farthest(directions)
    others = rng.uniform(low, high, (20000, 3, 2))
    others = others[np.sqrt(np.sum(others**2, axis=(1, 2))) <= radius]
    for direction, x in zip(directions, points, strict=True):
        example = found.admitted(x)
        assert example is not None
        assert norm_up(example) <= radius
        assert np.all((example >= low) & (example <= high))
        reached = np.max(np.sum(direction * others, axis=(1, 2)), initial=-math.inf)
        assert np.sum(direction * example) >= reached - 1e-6


def test_no_direction():
    assert np.all(domain(None, 2.0).farthest(np.zeros((1, 3, 2))) == 0.0)


def test_outside():
    assert domain(None, 2.0).admitted(np.full((3, 2), 2.0)) is None


def test_several_inputs_are_each_as_long_as_they_may_be():
    """Parts of an example have domains of their own; one of all together draws both in."""
    ball = Fact.of((1, 2), 0.5, Interval(np.zeros((1, 1)), np.ones((1, 1))))
    box = Fact.of((1, 3), math.inf, Interval(np.full((1, 1), 1.0), np.full((1, 1), 4.0)))
    none = np.zeros((1, 5), bool)
    parts = tuple(
        (where, Domain(fact.box.broadcast((1, size)).lo.shape, fact, none[:, where]))
        for where, fact, size in ((slice(0, 2), ball, 2), (slice(2, 5), box, 3))
    )
    ends = np.array([[0.0, 0, 1, 1, 1]]), np.array([[1.0, 1, 4, 4, 4]])
    for norm in (math.inf, 3.0):
        whole = Domain((1, 5), Fact.of((1, 5), norm, Interval(*ends)), none, parts)
        directions = np.random.default_rng(0).standard_normal((20, 1, 5))
        for x in whole.farthest(directions):
            example = whole.admitted(x)
            assert example is not None
            assert np.linalg.norm(example[:, :2]) <= 0.5
            assert np.linalg.norm(example) <= norm
            assert (example >= ends[0]).all()
            assert (example <= ends[1]).all()
        (best,) = whole.farthest(np.ones((1, 1, 5)))
        length = np.linalg.norm(best)
        assert length == pytest.approx(min(norm, math.sqrt(0.25 + 48.0)), rel=0.2)
        assert whole.admitted(np.array([[0.5, 0.5, 1.0, 1.0, 1.0]])) is None
