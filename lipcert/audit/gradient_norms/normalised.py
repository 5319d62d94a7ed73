"""Gradient of the scale of a normalisation layer: f = x̂, the normalised value.

What enters: the value before normalisation, and its cotangent. What leaves: G_j = Σ x̂·b over the
entries that meet scale j. Invariant: x̂ is computed anew from
the value; what the network itself rounded does not enter.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.method import Gradients, Method, OperandGradient
from lipcert.audit.gradient_norms.moments import Statistics
from lipcert.audit.gradient_norms.pair import Pair
from lipcert.audit.gradient_norms.reductions import reduced, summing
from lipcert.audit.gradient_norms.rounding import OUTWARD, gamma, underflow
from lipcert.audit.gradient_norms.squares import Squares, sum_of_squares, widened
from lipcert.core.program import Shape


@final
@dataclass(frozen=True, slots=True)
class BlockScale(OperandGradient):
    """The scale of a layer that normalises blocks of `size` consecutive entries.

    placed: the scale's shape with as many axes as the value, 1 where it is repeated.
    """

    placed: Shape
    size: int
    centred: bool
    epsilon: float

    @property
    def key(self) -> Hashable:
        """Everything but the numbers."""
        return self

    def methods(self, pair: Pair) -> Sequence[Method]:
        """Entry by entry in float64; by moments where whole channels lie in one block."""
        entrywise = Method("entrywise", self.gradient_scratch(pair), self._entrywise, work=1)
        if self.sums_channels(tuple(pair.b.shape[1:])):
            scratch = 2 * prod(pair.b.shape[1:]) * pair.b.element_size()
            return [Method("moments", scratch, self._moments, cancels=True), entrywise]
        return [entrywise]

    def gradients(self, pair: Pair) -> Gradients:
        """In float64.

        Proof: let m, q be mean and mean square of a block of n entries, v the variance (q where
        nothing is subtracted), s = v + ε and r = 1/√s. Computed in float64: |Δm| ≤ γ_n√q, and the
        centred entries are off by δ ≤ γ_{n+1}√q each. Hence |Δv| ≤ γ_{n+4}v + 2δ√v + δ², and
        |Δs|/s ≤ 3γ_{n+4}κ with κ = 1 + q/s: ‖Δx̂‖ ≤ √n·δ·r + ‖x̂‖·(3γ_{n+4}κ/2 + γ_4) on the
        block, which is at most γ_{4n+32}·κ·(√n·√q·r + ‖x̂‖) where γ_{4n+32}·κ < 1/10.
        The sums cost their own γ, as for every entrywise gradient.
        """
        pair = pair.double()
        normalised, off = self._normalised(pair.a)
        own = sum_of_squares(normalised).upper.sqrt()
        reach = pair.b_squares.upper.sqrt()
        terms = prod(pair.b.shape[1:]) // max(prod(self.placed), 1)
        relative = summing(terms, torch.float64) + gamma(2, torch.float64)
        lost = prod(pair.b.shape[1:]) * underflow(torch.float64)
        distance = ((own + off) * relative + off) * reach + lost
        return Gradients(reduced(normalised * pair.b, self.placed), distance * OUTWARD)

    def gradient_scratch(self, pair: Pair) -> int:
        """Both tensors in float64, and three more of their size."""
        return 40 * prod(pair.b.shape[1:])

    def _normalised(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """x̂, and by how much it is off: [examples, *shape] and [examples]."""
        blocks = value.reshape(len(value), -1, self.size)
        square = blocks.square().mean(2, keepdim=True)
        centred = blocks - blocks.mean(2, keepdim=True) if self.centred else blocks
        spread = centred.square().mean(2, keepdim=True) + self.epsilon
        normalised = centred / spread.sqrt()
        excess = (square / spread).squeeze(2)
        own = normalised.square().sum(2).sqrt()
        constant = gamma(4 * self.size + 32, torch.float64)
        off = constant * (1.0 + excess) * ((excess * self.size).sqrt() + own)
        off = torch.where(constant * (1.0 + excess) < 0.1, off, torch.inf)
        off = off.square().sum(1).sqrt()
        return normalised.reshape(value.shape), off * OUTWARD

    def _entrywise(self, pair: Pair) -> Squares:
        found = self.gradients(pair)
        return widened(sum_of_squares(found.gradient), found.distance)

    def sums_channels(self, shape: Shape) -> bool:
        """Where blocks are whole channels, and each channel has one scale."""
        channels, *repeated = self.placed
        positions = prod(shape[1:])
        whole = positions > 1 and self.size % positions == 0
        return whole and channels == shape[0] and set(repeated) == {1}

    def _moments(self, pair: Pair) -> Squares:
        sums = pair.channel_sums
        statistics = sums.statistics(self.size, self.centred, self.epsilon)
        return sums.scale_squares(statistics)


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
        zero = torch.zeros_like(self.mean)
        return pair.channel_sums.scale_squares(
            Statistics(self.mean, zero, self.inverse, zero + 2.0**-48)
        )
