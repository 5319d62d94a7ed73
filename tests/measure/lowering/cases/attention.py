"""Scaled dot-product attention against torch."""

from __future__ import annotations

import numpy as np
import torch

from tests.measure.lowering.cases.case import Case
from tests.ops import Attention

CAUSAL = np.where(np.tril(np.ones((3, 3))) > 0, 0.0, -1e9)
HIDDEN = np.where(np.tril(np.ones((3, 3))) > 0, 0.0, -np.inf)
PADDED = np.array([0.5, -0.25, -np.inf])
SMALL = np.random.default_rng(0).standard_normal((2, 4))


def case(scale, shapes, mask=None, box=None) -> Case:
    def reference(inputs, _):
        q, k, v = inputs
        scores = scale * (q @ k)
        if mask is not None:
            scores = scores + torch.tensor(mask)
        return torch.softmax(scores, -1) @ v

    return Case(
        name=f"attention_{scale}_{shapes}_{mask is not None}_{box}",
        op=Attention(scale, mask),
        inputs=shapes,
        reference=reference,
        box=box,
    )


CASES = [
    case(0.5, ((2, 3), (3, 4), (4, 2))),
    case(1.0, ((2, 3, 2), (2, 2, 3), (2, 3, 2)), mask=CAUSAL),
    case(1.0, ((2, 3, 2), (2, 2, 3), (2, 3, 2)), mask=HIDDEN),
    case(0.4, ((3, 2), (2, 3), (3, 2)), mask=HIDDEN, box=(-1.0, 1.0)),
    case(0.3, ((4, 2), (2, 3), (3, 2)), mask=PADDED),
    case(0.7, ((2, 3), (3, 4), (4, 2)), mask=SMALL, box=(-0.5, 1.0)),
    case(-2.0, ((3, 2), (2, 3), (3, 2))),
    case(1.0, ((2, 2), (2, 1), (1, 3))),
    case(1.0, ((1, 1), (1, 2), (2, 1))),
    case(0.3, ((4, 2), (2, 4), (4, 2)), box=(0.9, 1.1)),
]
