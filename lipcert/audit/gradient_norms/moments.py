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
_INVERSE_OFF: Final = 2.0**-48


@final
@dataclass(frozen=True, slots=True, eq=False)
class ChannelSums:
    """Sums over the positions of each channel.  # float64 [examples, channels] each

    b, product: of b and a·b; a_norm, b_norm: upper bounds of the channels' 2-norms. The sums are
    within relative·√positions·b_norm + lost and relative·a_norm·b_norm + lost.
    """

    b: Tensor
    product: Tensor
    a_norm: Tensor
    b_norm: Tensor
    positions: int
    relative: float
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
            b=b_sums,
            product=products,
            a_norm=a_squares.upper.sqrt().reshape(shape),
            b_norm=b_squares.upper.sqrt().reshape(shape),
            positions=positions,
            relative=gamma(_BLOCK + 1, dtype) + in_double,
            lost=positions * underflow(dtype),
        )

    def at(self, where: slice | Tensor) -> ChannelSums:
        """Those of some examples."""
        tensors = ("b", "product", "a_norm", "b_norm")
        return replace(self, **{name: getattr(self, name)[where] for name in tensors})

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

    def scale_squares(self, mean: Tensor, inverse: Tensor) -> Squares:
        """‖G‖² for m = mean, and r within δ = 2⁻⁴⁸ of inverse, both [channels].

        Proof: with d = Σab − mΣb, the computed d is off by ρ‖a_c‖‖b_c‖ + |m|ρ√T‖b_c‖, and G_c = r·d
        by r(1 + δ) times that, and by δ·r·|d|.
        """
        gradient = inverse * (self.product - mean * self.b)
        sums = self.a_norm + mean.abs() * sqrt(self.positions)
        off = sums * self.b_norm * self.relative + self.lost
        off = inverse * (1.0 + _INVERSE_OFF) * off + _INVERSE_OFF * gradient.abs()
        off = off + gamma(8, torch.float64) * inverse * (self.product.abs() + (mean * self.b).abs())
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
