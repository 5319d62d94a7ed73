"""Gradient of a normalising scale from sums over channels alone: G_c = r(Σ a·b − m·Σ b).

What enters: a value a and its cotangent b, [examples, channels, *positions], and per channel the
mean m and inverse deviation r. What leaves: squares. Nothing as large as a is ever written in
float64; where a mean far from zero makes the differences cancel, the error bound says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Final, final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.pair import Pair
from lipcert.audit.gradient_norms.rounding import OUTWARD, gamma, underflow
from lipcert.audit.gradient_norms.squares import Squares, sum_of_squares, widened

__all__ = ["ChannelSums", "Statistics"]

_BLOCK: Final = 32
_SQUARE_BLOCK: Final = 256


@final
@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Per channel: m within mean_off, and r within inverse_off·r.  # broadcast to [examples, c]"""

    mean: Tensor
    mean_off: Tensor
    inverse: Tensor
    inverse_off: Tensor


@final
@dataclass(frozen=True, slots=True, eq=False)
class ChannelSums:
    """Sums over the positions of each channel.  # float64 [examples, channels] each

    a, b, product, square: of a, b, a·b and a²; a_norm, b_norm: upper bounds of the channels'
    2-norms. The sums are within relative·√positions·a_norm, the same with b_norm,
    relative·a_norm·b_norm and square_relative·a_norm² + lost.
    """

    a: Tensor
    b: Tensor
    product: Tensor
    square: Tensor
    a_norm: Tensor
    b_norm: Tensor
    positions: int
    relative: float
    square_relative: float
    lost: float

    @classmethod
    def of(cls, pair: Pair) -> ChannelSums:
        """One pass over the tensors for each sum."""
        positions = prod(pair.b.shape[2:])
        shape = tuple(pair.b.shape[:2])
        a, b = (tensor.reshape(*shape, positions) for tensor in (pair.a, pair.b))
        squares = [sum_of_squares(t.reshape(-1, positions)) for t in (a, b)]
        dtype = pair.b.dtype
        in_double = gamma(positions // _BLOCK + shape[1] + 16, torch.float64)
        return cls(
            a=_sums(a),
            b=_sums(b),
            product=_products(a, b),
            square=squares[0].value.reshape(shape),
            a_norm=squares[0].upper.sqrt().reshape(shape),
            b_norm=squares[1].upper.sqrt().reshape(shape),
            positions=positions,
            relative=gamma(_BLOCK + 1, dtype) + in_double,
            square_relative=gamma(_SQUARE_BLOCK + 8, dtype) + in_double,
            lost=positions * underflow(dtype),
        )

    def statistics(self, size: int, centred: bool, epsilon: float) -> Statistics:
        """Of blocks of `size` entries, a whole number of channels each.

        Proof: let q be the mean square. The sums of a are off by ρ√T‖a_c‖, so by Cauchy–Schwarz
        |Δm| ≤ ρ√q; |Δq| ≤ σq, σ the constant of the squares; the variance q − m² is off by at
        most |Δq| + 2√q|Δm| + |Δm|² ≤ (2σ + 4ρ)q. If s = v + ε is off by δs with δ ≤ 1/2, then
        1/√s is by at most δ of itself; otherwise nothing is known.
        """
        examples, channels = self.a.shape
        blocks = channels * self.positions // size
        grouped = (examples, blocks, channels // blocks)
        square = self.square.reshape(grouped).sum(2) / size
        mean = self.a.reshape(grouped).sum(2) / size
        if not centred:
            mean = mean * 0.0
        spread = (square - mean.square()).clamp_min(0.0) + epsilon
        relative = 2.0 * self.square_relative + 4.0 * self.relative
        off = (relative * square + self.lost) / spread
        off = torch.where(off <= 0.5, off, torch.inf)
        mean_off = self.relative * square.sqrt() * OUTWARD + self.lost
        found = (mean, mean_off, spread.rsqrt(), off * OUTWARD + 2.0**-48)
        return Statistics(*(entry.repeat_interleave(channels // blocks, 1) for entry in found))

    def scale_squares(self, of: Statistics) -> Squares:
        """‖G‖².

        Proof: with d = Σab − mΣb, the computed d is off by ρ‖a_c‖‖b_c‖ + (|m| + |Δm|)ρ√T‖b_c‖ +
        |Δm||Σb|, and G_c = r·d by r(1 + δ) times that, and by δ·r·|d|.
        """
        difference = self.product - of.mean * self.b
        gradient = of.inverse * difference
        sums = self.a_norm + (of.mean.abs() + of.mean_off) * sqrt(self.positions)
        off = sums * self.b_norm * self.relative + of.mean_off * self.b.abs() + self.lost
        off = of.inverse * (1.0 + of.inverse_off) * off + of.inverse_off * gradient.abs()
        off = off + gamma(8, torch.float64) * of.inverse * (
            self.product.abs() + (of.mean * self.b).abs()
        )
        distance = off.square().sum(1).sqrt() * OUTWARD
        return widened(sum_of_squares(gradient), distance)


def _sums(rows: Tensor) -> Tensor:
    positions = rows.shape[2]
    whole = positions // _BLOCK * _BLOCK
    total = rows[:, :, whole:].sum(2).double()
    if whole:
        blocks = rows[:, :, :whole].reshape(*rows.shape[:2], whole // _BLOCK, _BLOCK).sum(3)
        total = total + blocks.sum(2, dtype=torch.float64)
    return total


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Blocks of dot products, added in float64."""
    positions = a.shape[2]
    whole = positions // _BLOCK * _BLOCK
    total: Tensor = torch.linalg.vecdot(a[:, :, whole:], b[:, :, whole:]).double()
    if whole:
        shape = (*a.shape[:2], whole // _BLOCK, _BLOCK)
        parts = [tensor[:, :, :whole].reshape(shape) for tensor in (a, b)]
        total = total + torch.linalg.vecdot(*parts).sum(2, dtype=torch.float64)
    return total
