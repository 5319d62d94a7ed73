"""Random examples are admissible."""

import math

import numpy as np

from lipcert.gradient_stats.examples import random_examples
from lipcert.losses import make_loss
from tests.domains import side_by_side


def test_several_inputs_lie_in_their_domains_and_in_that_of_all() -> None:
    inputs = [(4, 0.5, None), (6, math.inf, (0.5, 2.0))]
    for radius in (math.inf, 1.5):
        domain = side_by_side(inputs, radius)
        drawn = random_examples((1, 10), domain, make_loss("cross-entropy"), (1, 3), 50)
        x = drawn.x.reshape(50, 10)
        assert np.linalg.norm(x[:, :4], axis=1).max() <= 0.5 * (1.0 + 1e-12)
        assert x[:, 4:].min() >= 0.5
        assert x[:, 4:].max() <= 2.0
        assert np.linalg.norm(x, axis=1).max() <= radius * (1.0 + 1e-12)
