"""The farthest examples are admissible, and no admissible example is farther."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lipcert.core.interval import Interval, norm_up
from lipcert.core.rules.facts import Fact
from lipcert.search.witness import Domain

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
