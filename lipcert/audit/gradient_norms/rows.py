"""Gradient of the table of an embedding: row i receives Σ of b_t over the positions t that read it.

What enters: numbers of rows a [examples, ...], and b [examples, ..., width]. What leaves: ‖G‖²
without a table for every example, or the tables themselves.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.method import Gradients, Method, OperandGradient
from lipcert.audit.gradient_norms.pair import Pair
from lipcert.audit.gradient_norms.rounding import OUTWARD, gamma, underflow
from lipcert.audit.gradient_norms.squares import Squares, sum_of_squares, widened


@final
@dataclass(frozen=True, slots=True)
class TableGradient(OperandGradient):
    """The table [rows, width] of an `Embedding`."""

    rows: int

    @property
    def key(self) -> Hashable:
        """One method only."""
        return "table"

    def methods(self, pair: Pair) -> Sequence[Method]:
        """Sums over the positions of one row; nothing to add up at one position."""
        positions, width = self._sizes(pair)
        if positions == 1:
            return [Method("cotangent", 0, lambda pair: pair.b_squares)]
        return [Method("rows", 8 * positions * (2 * positions + 2 * width), self._squares)]

    def gradients(self, pair: Pair) -> Gradients:
        """The tables.  # [examples, rows, width]"""
        return self._added(pair, self._numbers(pair), self.rows, pair.b.dtype)

    def gradient_scratch(self, pair: Pair) -> int:
        """The table."""
        return 8 * self.rows * self._sizes(pair)[1]

    def _squares(self, pair: Pair) -> Squares:
        """Each row is kept at the first position that reads it, all others are 0."""
        numbers = self._numbers(pair)
        same = numbers[:, :, None] == numbers[:, None, :]
        found = self._added(pair, same.int().argmax(2), numbers.shape[1], torch.float64)
        return widened(sum_of_squares(found.gradient), found.distance)

    def _added(self, pair: Pair, places: Tensor, count: int, dtype: torch.dtype) -> Gradients:
        """b_t added up by places [examples, positions].

        Proof of the distance: a sum of at most P entries is off by γ_P Σ|b_t|, and (Σ over the
        positions of a row of |b_t|)² ≤ P·Σ|b_t|².
        """
        positions, width = self._sizes(pair)
        b = pair.b.reshape(len(pair), positions, width).to(dtype)
        added = b.new_zeros(len(pair), count, width)
        added.scatter_add_(1, places[:, :, None].expand_as(b), b)
        share = gamma(positions, dtype) * sqrt(positions) if positions > 1 else 0.0
        lost = positions * width * underflow(dtype)
        return Gradients(added, (pair.b_squares.upper.sqrt() * share + lost) * OUTWARD)

    def _numbers(self, pair: Pair) -> Tensor:
        """Rows from 0 on; negative numbers count from the end."""
        return pair.a.reshape(len(pair), -1).long() % self.rows

    def _sizes(self, pair: Pair) -> tuple[int, int]:
        return prod(pair.b.shape[1:-1]), pair.b.shape[-1]
