"""Gradient of the scale of a layer that normalises by stored statistics: f = x̂ = (x − m)·r.

What enters: the value before normalisation, and its cotangent. What leaves: G_c = Σ x̂·b over the
entries of channel c. Invariant: x̂ is computed anew from the value; what the network itself rounded
does not enter.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.method import Gradients, Method, OperandGradient
from lipcert.audit.gradient_norms.pair import Pair
from lipcert.audit.gradient_norms.reductions import reduced, summing
from lipcert.audit.gradient_norms.rounding import OUTWARD, gamma, underflow
from lipcert.audit.gradient_norms.squares import Squares, sum_of_squares
from lipcert.core.program import Shape


@final
@dataclass(frozen=True, slots=True, eq=False)
class ChannelScale(OperandGradient):
    """The scale of a layer that normalises channel c by stored statistics: (x − mean)·inverse.

    mean, inverse: float64 [channels]; inverse = 1/√(variance + ε).
    """

    mean: Tensor
    inverse: Tensor

    @property
    def key(self) -> Hashable:
        """One method only."""
        return "channel"

    def sums_channels(self, shape: Shape) -> bool:
        """Each channel has one scale."""
        return len(shape) > 0

    def methods(self, pair: Pair) -> Sequence[Method]:
        """By moments."""
        scratch = 2 * prod(pair.b.shape[1:]) * pair.b.element_size()
        return [Method("moments", scratch, self._moments, cancels=True)]

    def gradients(self, pair: Pair) -> Gradients:
        """In float64. Proof: (x − mean)·inverse is off by γ_8(|x| + |mean|)·inverse at most."""
        pair = pair.double()
        placed = (-1, *[1] * (pair.b.dim() - 2))
        mean, inverse = self.mean.reshape(placed), self.inverse.reshape(placed)
        normalised = (pair.a - mean) * inverse
        longest = sum_of_squares((pair.a.abs() + mean.abs()) * inverse).upper.sqrt()
        terms = prod(pair.b.shape[2:])
        relative = summing(terms, torch.float64) + gamma(16, torch.float64)
        lost = prod(pair.b.shape[1:]) * underflow(torch.float64)
        distance = longest * pair.b_squares.upper.sqrt() * relative + lost
        shape = (len(self.mean), *[1] * (pair.b.dim() - 2))
        return Gradients(reduced(normalised * pair.b, shape), distance * OUTWARD)

    def gradient_scratch(self, pair: Pair) -> int:
        """Both tensors in float64, and three more of their size."""
        return 40 * prod(pair.b.shape[1:])

    def _moments(self, pair: Pair) -> Squares:
        return pair.channel_sums.scale_squares(self.mean, self.inverse)
