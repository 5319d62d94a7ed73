"""Gradient of a normalising scale from sums over each channel alone: G_c = r(Σ a·b − m·Σ b).

What enters: a value a and its cotangent b, [examples, channels, *positions], and per channel the
mean m and inverse deviation r. What leaves: squares. Nothing as large as a is ever written in
float64; where a mean far from zero makes the differences cancel, the error bound says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import Final, final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.rounding import OUTWARD, gamma, underflow
from lipcert.audit.gradient_norms.squares import Squares, sum_of_squares, widened

_BLOCK: Final = 64
_LEAST_BLOCK: Final = 16
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
    def of(cls, a: Tensor, b: Tensor, a_squares: Squares, b_squares: Squares) -> ChannelSums:
        """Of a value and its cotangent, and the squares of their channels."""
        positions = prod(b.shape[2:])
        shape = tuple(b.shape[:2])
        a, b = (tensor.reshape(*shape, positions).contiguous() for tensor in (a, b))
        dtype = b.dtype
        in_double = gamma(positions // _LEAST_BLOCK + shape[1] + 16, torch.float64)
        b_sums, products = _sums_and_products(a, b)
        return cls(
            a=_sums(a),
            b=b_sums,
            product=products,
            square=a_squares.value.reshape(shape),
            a_norm=a_squares.upper.sqrt().reshape(shape),
            b_norm=b_squares.upper.sqrt().reshape(shape),
            positions=positions,
            relative=gamma(_BLOCK + 1, dtype) + in_double,
            square_relative=gamma(_SQUARE_BLOCK + 8, dtype) + in_double,
            lost=positions * underflow(dtype),
        )

    def at(self, where: slice | Tensor) -> ChannelSums:
        """Those of some examples."""
        tensors = ("a", "b", "product", "square", "a_norm", "b_norm")
        return replace(self, **{name: getattr(self, name)[where] for name in tensors})

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

    def bias_squares(self) -> Squares:
        """‖Σb‖² over all channels; each sum is off by ρ√T‖b_c‖."""
        distance = self.b_norm.square().sum(1).sqrt() * (self.relative * sqrt(self.positions))
        lost = self.lost * sqrt(self.b.shape[1])
        return widened(sum_of_squares(self.b), (distance + lost) * OUTWARD)

    def product_squares(self) -> Squares:
        """‖Σab‖² over all channels; each sum is off by ρ‖a_c‖‖b_c‖ and what underflows."""
        distance = (self.a_norm * self.b_norm).square().sum(1).sqrt() * self.relative
        lost = self.lost * sqrt(self.b.shape[1])
        return widened(sum_of_squares(self.product), (distance + lost) * OUTWARD)

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


def squares_of_channels(tensor: Tensor) -> Squares:
    """Of every channel of every example, one after another.  # [examples · channels]"""
    return sum_of_squares(tensor.reshape(len(tensor) * tensor.shape[1], -1))


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


def _sums_and_products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Σb and Σa·b of every channel; in one pass where the positions fall into equal blocks.

    The pass is the one that torch makes for the scale and the bias of a group normalisation: with
    one example, a channel for each block, mean 0 and deviation 1, these gradients are the sums.
    """
    block = _equal_block(a.shape[2])
    if block is None or a.device.type != "cpu" or not a.numel():
        return _sums(b), _products(a, b)
    rows = a.numel() // block
    zero, one = a.new_zeros(1, 1), a.new_ones(1, 1)
    _, products, sums = torch.ops.aten.native_group_norm_backward(
        b.view(1, rows, block),
        a.view(1, rows, block),
        zero,
        one,
        one.view(1).expand(rows),
        1,
        rows,
        block,
        1,
        [False, True, True],
    )
    shape = (*a.shape[:2], -1)
    double = torch.float64
    return sums.view(shape).sum(2, dtype=double), products.view(shape).sum(2, dtype=double)


def _equal_block(positions: int) -> int | None:
    """The longest block that divides the positions evenly; None where only short ones do."""
    lengths = range(min(_BLOCK, positions), _LEAST_BLOCK - 1, -1)
    return next((length for length in lengths if positions % length == 0), None)
