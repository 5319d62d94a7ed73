"""Random networks of several inputs under attack: no value, Lipschitz constant or gradient is
larger than its bound, at the weights of the file and over all within constraints.
"""

from __future__ import annotations

import pytest

from tests.core.adversary import found_above
from tests.core.several_inputs import several_inputs

CAUGHT = (113, 127, 227)
"""of which bounds were too small while a centre needed to be allowed by all inputs together only"""


@pytest.mark.parametrize("seed", [*CAUGHT, *range(3)])
def test_nothing_exceeds_its_bound(seed: int) -> None:
    assert not found_above(seed, draw=several_inputs)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 1600, 50))
def test_nothing_exceeds_its_bound_in_many_networks(first: int) -> None:
    """`python -m benchmarks.input_attacks` tries more."""
    found = {seed: found_above(seed, draw=several_inputs) for seed in range(first, first + 50)}
    assert not {seed: wrong for seed, wrong in found.items() if wrong}
    assert sum(wrong is None for wrong in found.values()) < 10
