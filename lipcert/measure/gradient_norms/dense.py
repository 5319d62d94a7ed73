"""Gradients of dense weights and of the tables of embeddings.

Of a dense weight, G = Σ_t b_t a_tᵀ over the positions t of one example, with a [examples, ..., in]
and b [examples, ..., out]: three exact ways to ‖G‖². Of a table, row i receives Σ of b_t over the
positions t that read it, with numbers of rows a [examples, ...] and b [examples, ..., width]: ‖G‖²
without a table for every example, or the tables themselves.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import final

import torch
from torch import Tensor

from lipcert.measure.gradient_norms.operand import Gradients, Method, OperandGradient, Pair
from lipcert.measure.gradient_norms.squares import (
    OUTWARD,
    Squares,
    from_gram,
    gamma,
    instantiated_distance,
    product_of_grams,
    sum_of_squares,
    underflow,
    widened,
    with_distance,
)


@final
@dataclass(frozen=True, slots=True)
class DenseWeight(OperandGradient):
    """The weight [out, in] of a `Dense`."""

    @property
    def key(self) -> Hashable:
        """One constant: the shapes decide."""
        return "dense"

    def methods(self, pair: Pair) -> Sequence[Method]:
        """At one position the outer product; otherwise whatever is cheaper."""
        positions, read, written = _sizes(pair)
        if positions == 1:
            return [Method("product", 0, lambda pair: pair.a_squares.product(pair.b_squares))]
        width = pair.b.element_size()
        instantiated = Method(
            "instantiated",
            read * written * width,
            self._instantiated,
            work=positions * read * written,
        )
        gram = Method(
            "gram",
            2 * positions**2 * width,
            _gram,
            cancels=True,
            work=positions**2 * (read + written),
        )
        if positions * (read + written) > 4 * read * written:
            return [instantiated]
        return [instantiated, gram]

    def gradients(self, pair: Pair) -> Gradients:
        """G = BᵀA.  # [examples, out, in]"""
        a, b = _matrix(pair.a), _matrix(pair.b)
        positions, read, written = _sizes(pair)
        distance = instantiated_distance(pair.reach, positions, read * written, b.dtype)
        return Gradients(torch.bmm(b.mT, a), distance)

    def gradient_scratch(self, pair: Pair) -> int:
        """The bytes of one gradient in float64."""
        _, read, written = _sizes(pair)
        return 8 * read * written

    def _instantiated(self, pair: Pair) -> Squares:
        found = self.gradients(pair)
        return with_distance(found.gradient, found.distance, pair.b)


def _gram(pair: Pair) -> Squares:
    """From AAᵀ and BBᵀ, both [positions, positions]."""
    s, q = product_of_grams(_matrix(pair.a).mT, _matrix(pair.b).mT)
    _, read, written = _sizes(pair)
    reaches = (pair.a_squares.upper, pair.b_squares.upper)
    return from_gram(s.unsqueeze(1), q.unsqueeze(1), reaches, (read, written))


def _matrix(tensor: Tensor) -> Tensor:
    """[examples, positions, features]"""
    return tensor.reshape(len(tensor), prod(tensor.shape[1:-1]), tensor.shape[-1])


def _sizes(pair: Pair) -> tuple[int, int, int]:
    """Positions, features read, features written."""
    return prod(pair.b.shape[1:-1]), pair.a.shape[-1], pair.b.shape[-1]


@final
@dataclass(frozen=True, slots=True)
class TableGradient(OperandGradient):
    """The table [rows, width] of an `Embedding`."""

    rows: int

    @property
    def key(self) -> Hashable:
        """One constant: the shapes decide."""
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
        """The bytes of one table in float64."""
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
