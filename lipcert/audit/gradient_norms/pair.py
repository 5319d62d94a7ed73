"""Pair: what a layer read and the cotangent it received; all that its gradient norm needs.

What enters: two tensors of a batch. What leaves: the same, cut by examples or made float64.
Invariant: the squares are those of the two tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.moments import ChannelSums, squares_of_channels
from lipcert.audit.gradient_norms.squares import Squares, sum_of_squares


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A value a, a cotangent b, and ‖a‖² and ‖b‖² of every example.

    channels: sums over each channel, where they have been computed already.

    a, b: [examples, ...] of one dtype, float32 or float64.
    """

    a: Tensor
    b: Tensor
    a_squares: Squares
    b_squares: Squares
    channels: ChannelSums | None = None

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> Pair:
        """A pair whose squares are still to be computed."""
        return cls(a, b, sum_of_squares(a), sum_of_squares(b))

    @property
    def channel_sums(self) -> ChannelSums:
        """Sums over each channel."""
        if self.channels is not None:
            return self.channels
        squares = [squares_of_channels(tensor) for tensor in (self.a, self.b)]
        return ChannelSums.of(self.a, self.b, *squares)

    def __len__(self) -> int:
        return len(self.b)

    @property
    def reach(self) -> Tensor:
        """‖a‖·‖b‖, from above."""
        return self.a_squares.upper.sqrt() * self.b_squares.upper.sqrt()

    def swapped(self) -> Pair:
        """The roles of value and cotangent exchanged."""
        return Pair(self.b, self.a, self.b_squares, self.a_squares)

    def contiguous(self) -> Pair:
        """Both tensors in the order of their axes."""
        if self.a.is_contiguous() and self.b.is_contiguous():
            return self
        return Pair(self.a.contiguous(), self.b.contiguous(), self.a_squares, self.b_squares)

    def part(self, start: int, stop: int) -> Pair:
        """Consecutive examples."""
        if start == 0 and stop >= len(self):
            return self
        return self._at(slice(start, stop))

    def picked(self, where: Tensor) -> Pair:
        """The examples at given indices."""
        return self._at(where)

    def _at(self, where: slice | Tensor) -> Pair:
        squares = (self.a_squares.at(where), self.b_squares.at(where))
        channels = None if self.channels is None else self.channels.at(where)
        return Pair(self.a[where], self.b[where], *squares, channels)

    def double(self) -> Pair:
        """In float64, where squares of float32 numbers neither overflow nor underflow."""
        if self.b.dtype is torch.float64:
            return self
        return Pair.of(self.a.double(), self.b.double())
