"""Normalisation over axes, and by stored numbers, against torch."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from lipcert.graph.operand import Operand
from tests.measure.lowering.cases.case import Case
from tests.ops import BatchNorm, Normalize

RANDOM = np.random.default_rng(0)


def normalize(name, shape, axes, epsilon, centred=True) -> Case:
    def reference(inputs, _):
        (x,) = inputs
        order = [axis + 1 for axis in axes]
        last = list(range(-len(axes), 0))
        moved = x.movedim(order, last)
        norm = functional.layer_norm if centred else functional.rms_norm
        return norm(moved, moved.shape[-len(axes) :], eps=epsilon).movedim(last, order)

    return Case(f"normalize {name}", Normalize(axes, epsilon, centred), (shape,), reference)


def stored(name, shape, box=None) -> Case:
    channels = shape[0]
    mean, variance = RANDOM.standard_normal(channels), RANDOM.random(channels) + 0.1
    scale, bias = (Operand(RANDOM.standard_normal(channels), slot) for slot in ("scale", "bias"))
    op = BatchNorm(mean, 1.0 / np.sqrt(variance + 1e-3), scale, bias)

    def reference(inputs, operands):
        numbers = torch.tensor(mean), torch.tensor(variance)
        affine = operands["scale"], operands["bias"]
        return functional.batch_norm(inputs[0], *numbers, *affine, eps=1e-3)

    return Case(f"stored statistics {name}", op, (shape,), reference, box)


CASES = [
    normalize("a line", (8,), (0,), 1e-2),
    normalize("little", (16,), (0,), 1e-5),
    normalize("rows", (3, 6), (1,), 0.1),
    normalize("two axes", (2, 3, 4), (1, 2), 0.05),
    normalize("an axis in front", (3, 4), (0,), 0.05),
    normalize("axes around another", (2, 3, 4), (0, 2), 0.05),
    normalize("single entries", (3, 1), (1,), 0.1),
    normalize("root mean squares", (2, 5), (1,), 0.05, centred=False),
    normalize("root mean squares in front", (5, 2), (0,), 0.05, centred=False),
    stored("of a line", (3,)),
    stored("of an image", (2, 3, 2)),
    stored("in a box", (2, 3), box=(-0.25, 0.5)),
]
