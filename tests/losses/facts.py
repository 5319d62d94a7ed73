"""Facts about logits for the tests of losses, and a gradient attack on the logits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lipcert.facts import Bound, ValueFacts, no_bound
from lipcert.interval import Interval
from lipcert.upper import Upper

TorchLoss = Callable[[Tensor], Tensor]
"""Logits [examples, outputs] to the loss of each example [examples]."""

UNKNOWN = no_bound("test.unknown", "nothing is known")


def unbounded(*shape: int) -> ValueFacts:
    """Logits of which nothing is known."""
    return ValueFacts.of(shape, UNKNOWN)


def ball(radius: float, *shape: int) -> ValueFacts:
    """Logits in a ball around 0."""
    return ValueFacts.of(shape, Bound(Upper(radius), "test.ball"))


def cube(low: float, high: float, *shape: int) -> ValueFacts:
    """Logits in a cube."""
    return ValueFacts.of(shape, UNKNOWN, Interval(np.full(shape, low), np.full(shape, high)))


def attack(
    loss: TorchLoss, logits: ValueFacts, starts: int = 200, steps: int = 150, seed: int = 0
) -> float:
    """The largest ‖∂loss/∂z‖ found by projected gradient ascent over the admissible logits."""
    generator = torch.Generator().manual_seed(seed)
    outputs = logits.size
    z = torch.randn(starts, outputs, generator=generator, dtype=torch.float64)
    z *= 10.0 ** (3.0 * torch.rand(starts, 1, generator=generator, dtype=torch.float64) - 1.0)
    unit = torch.eye(outputs, dtype=torch.float64)
    special = 60.0 * torch.cat([unit, -unit, unit - unit[0], 0.0 * unit])
    z[: len(special)] = special
    z = _project(z, logits).requires_grad_(True)
    stride = 0.3 * min(1.0, logits.norm.value.value)
    best = 0.0
    for step in range(steps):
        gradient = torch.autograd.grad(loss(z).sum(), z, create_graph=steps > 1)[0]
        norms = gradient.norm(dim=1)
        best = max(best, norms.detach().max().item())
        if not gradient.requires_grad:  # piecewise linear: nothing to climb
            break
        slope = torch.autograd.grad(gradient.square().sum(), z)[0].nan_to_num()
        with torch.no_grad():
            ascent = slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-300)
            z.copy_(_project(z + stride * (1.0 - step / steps) * ascent, logits))
    return best


def _project(z: Tensor, logits: ValueFacts) -> Tensor:
    low = torch.from_numpy(np.array(logits.box.lo).ravel())
    high = torch.from_numpy(np.array(logits.box.hi).ravel())
    z = torch.minimum(torch.maximum(z, low), high)
    radius = logits.norm.value.value
    if math.isfinite(radius):
        z = z * torch.clamp(radius / z.norm(dim=1, keepdim=True).clamp_min(1e-300), max=1.0)
    return z
