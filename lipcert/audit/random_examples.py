"""Random examples of the input domain, where an audit has no data to start from.

What enters: claims, a count, a seed. What leaves: that many admissible examples with admissible
labels, the same for the same seed: the middle of the domain, its inside, corners and far points.
"""

from __future__ import annotations

import numpy as np

from lipcert.audit.attack.domain import Domain
from lipcert.audit.attack.label_sets import label_set
from lipcert.audit.bounds import Claims
from lipcert.audit.data import Examples


def random_examples(claims: Claims, count: int, seed: int = 0) -> Examples:
    """Examples of the input domain; NoVerdictError where the labels of the loss are not known."""
    random = np.random.default_rng(seed)
    engine = claims.engine
    domain = Domain.of(engine.graph.input_shape, claims.settings)
    labels = label_set(engine.loss, engine.graph.output_shape, engine.at_output)
    x = domain.settled(domain.drawn(count, random))
    return Examples(x, labels.drawn(count, random), f"random inputs (seed {seed})", "")
