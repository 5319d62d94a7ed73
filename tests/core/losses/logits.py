"""Facts about logits for the tests of losses, and a gradient attack on the logits."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipcert.core.interval import Interval
from lipcert.core.losses.base import Loss, loss_cotangent
from lipcert.core.rules.facts import Cotangent, Fact

TorchLoss = Callable[[Tensor], Tensor]
"""Logits [examples, outputs] to the loss of each example [examples]."""


@dataclass(frozen=True)
class Logits:
    """What is known of the outputs of an example."""

    shape: tuple[int, ...]
    radius: float = math.inf
    low: float = -math.inf
    high: float = math.inf

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def fact(self) -> Fact:
        ends = (np.full((1,) * len(self.shape), end) for end in (self.low, self.high))
        return Fact.of(self.shape, self.radius, Interval(*ends))


def unbounded(*shape: int) -> Logits:
    """Logits of which nothing is known."""
    return Logits(shape)


def ball(radius: float, *shape: int) -> Logits:
    """Logits in a ball around 0."""
    return Logits(shape, radius)


def cube(low: float, high: float, *shape: int) -> Logits:
    """Logits in a cube."""
    return Logits(shape, math.inf, low, high)


def bounded(loss: Loss, logits: Logits) -> Cotangent:
    """What the core says of the gradient of a loss."""
    return loss_cotangent(loss, logits.fact, logits.shape)


def attack(
    loss: TorchLoss, logits: Logits, starts: int = 100, steps: int = 80, seed: int = 0
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
    stride = 0.3 * min(1.0, logits.radius)
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


def _project(z: Tensor, logits: Logits) -> Tensor:
    z = z.clamp(logits.low, logits.high)
    if math.isfinite(logits.radius):
        z = z * torch.clamp(logits.radius / z.norm(dim=1, keepdim=True).clamp_min(1e-300), max=1.0)
    return z
