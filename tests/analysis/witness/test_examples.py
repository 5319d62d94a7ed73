"""The farthest examples are admissible, and no admissible example is farther."""

import numpy as np
import pytest

from lipcert.analysis.witness.examples import admitted, farthest
from lipcert.facts import Bound, ValueFacts
from lipcert.interval import Interval
from lipcert.upper import Upper, norm

BOXES = [None, (0.0, 1.0), (-1.0, 1.0), (0.2, 0.9), (-0.7, -0.1), (0.3, 0.3)]


def domain(box, radius, shape=(3, 2)):
    interval = None if box is None else Interval(np.full(shape, box[0]), np.full(shape, box[1]))
    return ValueFacts.of(shape, Bound(Upper(radius), "test"), interval)


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("radius", [0.8, 1.7, 30.0])
def test_farthest(box, radius):
    rng = np.random.default_rng(0)
    facts = domain(box, radius)
    directions = rng.standard_normal((5, 3, 2))
    directions[0, 0, 0] = 0.0
    found = farthest(directions, facts)
    others = rng.uniform(facts.box.lo, facts.box.hi, (20000, 3, 2))
    others = others[np.sqrt(np.sum(others**2, axis=(1, 2))) <= radius]
    for direction, x in zip(directions, found, strict=True):
        example = admitted(x, facts)
        assert example is not None
        assert norm(example) <= facts.norm.value
        assert np.all((example >= facts.box.lo) & (example <= facts.box.hi))
        assert np.sum(direction * example) >= np.max(np.sum(direction * others, axis=(1, 2))) - 1e-6


def test_no_direction():
    facts = domain(None, 2.0)
    assert np.all(farthest(np.zeros((1, 3, 2)), facts) == 0.0)


def test_outside():
    assert admitted(np.full((3, 2), 2.0), domain(None, 2.0)) is None
