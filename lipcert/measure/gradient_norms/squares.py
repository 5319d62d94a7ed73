"""Squares: squared norms of one tensor per example, with their own error bounds.

Invariant: 0 ≤ value ≤ upper, and |value − exact square| ≤ upper − value, wherever all are finite;
NaN and infinity stay. The constants of all error bounds are here as well: they hold for every order
of summation, fused or not, and for hardware that flushes subnormal numbers to zero. Bounds are
computed in float64 and then multiplied by `OUTWARD`, which covers the rounding of the bounds
themselves (a few dozen operations), or by `_UP` after at most four. Every layer whose gradient is a
matrix product Y Xᵀ gets its ‖Y Xᵀ‖² from the last functions here, for batches of matrices X [rows,
positions] and Y [columns, positions].

Norms do not depend on the order of entries in memory: images are [examples, channels, rows,
columns], and "channels last" means that the channels of one pixel are adjacent in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import sqrt
from typing import Final

import torch
from torch import Tensor

from lipcert.measure.measured import Measured


def is_channels_last(tensor: Tensor) -> bool:
    """Whether the channels of an image are adjacent in memory; also true if both orders agree."""
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def dense(tensor: Tensor) -> Tensor:
    """Return the tensor itself if it lies densely in memory in either order; otherwise a dense
    copy."""
    return tensor if is_channels_last(tensor) else tensor.contiguous()


def memory_order(tensor: Tensor) -> list[int]:
    """Return the axes except the first, with adjacent entries last."""
    return sorted(range(1, tensor.dim()), key=tensor.stride, reverse=True)


def in_memory_order(tensor: Tensor) -> Tensor:
    """Permute the axes so that flattening a dense tensor copies nothing."""
    return tensor if tensor.is_contiguous() else tensor.permute(0, *memory_order(tensor))


OUTWARD: Final = 1.0 + 2.0**-40
_UP: Final = 1.0 + 2.0**-50


@lru_cache(maxsize=1024)
def gamma(terms: int, dtype: torch.dtype) -> float:
    """Return γ_n = n·u/(1 − n·u): |fl(Σ x_i·y_i) − Σ x_i·y_i| ≤ γ_n Σ |x_i·y_i|; inf where n·u ≥
    1/2.

    Reference: Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    product = terms * torch.finfo(dtype).eps / 2.0
    return product / (1.0 - product) * OUTWARD if product < 0.5 else math.inf


@cache
def underflow(dtype: torch.dtype) -> float:
    """Return the largest absolute error of one operation whose result is not a normal number."""
    return torch.finfo(dtype).smallest_normal


_BLOCK: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Squares:
    """For each example a squared norm, and an upper bound of the exact one.  # float64 [examples]
    each

    The upper bound exceeds the squared norm by at least the error of the squared norm. rows: the
    tensors whose squares these are, if they were instantiated and are small.
    """

    value: Tensor
    upper: Tensor
    rows: Tensor | None = None

    @classmethod
    def within(cls, value: Tensor, error: Tensor) -> Squares:
        """Return squares that are off by at most `error`; a value below 0 is nearer to the truth at
        0."""
        value = value.clamp_min(0.0)
        return cls(value, (value + error) * _UP)

    @classmethod
    def zeros(cls, examples: int, device: torch.device) -> Squares:
        """Return the squares of zero gradients, which are exact."""
        zeros = torch.zeros(examples, dtype=torch.float64, device=device)
        return cls(zeros, zeros)

    @classmethod
    def joined(cls, parts: list[Squares]) -> Squares:
        """Join the squares of consecutive chunks of examples."""
        if len(parts) == 1:
            return parts[0]
        rows = [part.rows for part in parts if part.rows is not None]
        return cls(
            torch.cat([part.value for part in parts]),
            torch.cat([part.upper for part in parts]),
            torch.cat(rows) if len(rows) == len(parts) else None,
        )

    @property
    def error(self) -> Tensor:
        """A bound of the error of each square."""
        return (self.upper - self.value) * OUTWARD

    def at(self, where: slice | Tensor) -> Squares:
        """Return the squares of the selected examples."""
        return Squares(self.value[where], self.upper[where])

    def plus(self, other: Squares) -> Squares:
        """Return the squares of two orthogonal parts together.

        Proof: both sums are rounded once, by 2^-53 of at most the upper one.
        """
        return Squares(self.value + other.value, (self.upper + other.upper).mul_(_UP))

    @staticmethod
    def total_upper(parts: Sequence[Squares]) -> Tensor:
        """Return upper bounds of the squares of n orthogonal parts together, in a new tensor.

        Proof: the sum is off by γ_n of itself.
        """
        share = gamma(len(parts) + 2, torch.float64)
        return torch.stack([part.upper for part in parts]).sum(0).mul_(1.0 + 4.0 * share)

    def times(self, factor: float) -> Squares:
        """Return the squares of tensors multiplied by √factor."""
        if factor == 1.0:
            return self
        return Squares(self.value * factor, (self.upper * factor).mul_(_UP))

    def product(self, other: Squares) -> Squares:
        """Return ‖b aᵀ‖² = ‖b‖²‖a‖².

        Proof: pq is off by at most pf + qe + ef = (p + e)(q + f) − pq.
        """
        return Squares(self.value * other.value, (self.upper * other.upper).mul_(_UP))

    def is_wide(self, relative: float) -> Tensor:
        """Return which examples are too inaccurate: error of the norm > relative · norm.

        Norms below 1e-15 count as accurate, values that are not finite as inaccurate.
        """
        return ~(self.upper < self.value * (1.0 + 2.0 * relative) + 1e-30)

    def replaced(self, where: Tensor, by: Squares) -> Squares:
        """Return these squares, with those at the indices `where` replaced."""
        value, upper = self.value.index_copy(0, where, by.value), self.upper
        return Squares(value, upper.index_copy(0, where, by.upper))

    def measured(self) -> Measured:
        """Return the norms.

        Proof: let v = value, e = error, s the exact square. |√v − √s| = |v − s|/(√v + √s), and s ≥
        v − e; where that is of no use, |√v − √s| ≤ √|v − s| ≤ √e.
        """
        norm, off = self.value.sqrt(), self.error
        least = (self.value - off).clamp_min(0.0).sqrt()
        quotient = torch.where(norm > 0.0, off / (norm + least), torch.inf)
        error = torch.minimum(quotient, off.sqrt()) * OUTWARD + norm * 2.0**-51
        return Measured(norm.cpu().numpy(), error.cpu().numpy())


def sum_of_squares(tensor: Tensor) -> Squares:
    """Return ‖tensor[i]‖² of every example i.

    Proof: a block of n ≤ 1024 entries is summed in the tensor's own dtype: error ≤ γ_n, and its
    root, which is rounded once, is squared in float64: together ≤ γ_{n+4} relative. The blocks are
    added in float64. Squares that underflow lose at most the smallest normal number each. On a GPU,
    where the number of operations costs more than float64 does, all squares are added in float64 at
    once.
    """
    rows = _rows(tensor)
    length = rows.shape[1]
    if tensor.is_cuda and length:
        value = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()
        return _summed(value, 1.0 + gamma(length + 16, torch.float64), length, tensor.dtype)
    whole = length // _BLOCK * _BLOCK
    parts = []
    if whole:
        blocks = rows[:, :whole].reshape(len(rows), whole // _BLOCK, _BLOCK)
        parts.append(torch.linalg.vector_norm(blocks, dim=2).double().square_().sum(1))
    if whole < length:
        rest = rows[:, whole:] if whole else rows
        parts.append(torch.linalg.vector_norm(rest, dim=1).double().square_())
    if not parts:
        return Squares.zeros(len(rows), tensor.device)
    value = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return _summed(value, _in_blocks(length, tensor.dtype), length, tensor.dtype)


def sums_of_squares(tensors: Sequence[Tensor]) -> Sequence[Squares]:
    """Return `sum_of_squares` of each tensor, in one operation if none is longer than a block."""
    rows = [_rows(tensor) for tensor in tensors]
    lengths = tuple([item.shape[1] for item in rows])
    longest = max(lengths, default=0)
    is_one_kind = all(item.is_cpu and item.dtype is rows[0].dtype for item in rows)
    if len(rows) < 2 or longest > _BLOCK or not is_one_kind:
        return [sum_of_squares(tensor) for tensor in tensors]
    norms = torch.stack([torch.linalg.vector_norm(item, dim=1) for item in rows])
    found = _summed(norms.double().square_(), _of_all(lengths, norms.dtype), longest, norms.dtype)
    return [*map(Squares, found.value.unbind(), found.upper.unbind())]


def _rows(tensor: Tensor) -> Tensor:
    """Flatten to [examples, entries], in any order."""
    rows = in_memory_order(tensor)
    return rows if rows.dim() == 2 else rows.reshape(len(tensor), -1)


@lru_cache(maxsize=1024)
def _in_blocks(length: int, dtype: torch.dtype) -> float:
    """Return by what factor a sum of this many squares, in blocks, may be too small."""
    relative = gamma(min(length, _BLOCK) + 4, dtype) + gamma(length // _BLOCK + 4, torch.float64)
    return (1.0 + relative * (1.0 + 2.0 * relative) * OUTWARD) * _UP


@lru_cache(maxsize=1024)
def _of_all(lengths: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return these factors in a column."""
    return torch.tensor([[_in_blocks(n, dtype)] for n in lengths], dtype=torch.float64)


def _summed(value: Tensor, factor: float | Tensor, length: int, dtype: torch.dtype) -> Squares:
    """Return sums of at most this many squares; underflow adds to what the factors cover.

    factor: of all, or one for each row.
    """
    upper = value * factor
    return Squares(value, upper.add_(length * underflow(dtype) * OUTWARD))


def widened(squares: Squares, distance: Tensor) -> Squares:
    """Return squares of tensors that are themselves off by `distance` (2-norm) from the exact ones.

    Proof: |‖G‖² − ‖Ĝ‖²| ≤ η(2‖Ĝ‖ + η) ≤ (√upper + η)² − upper.
    """
    return Squares(squares.value, squares.upper.sqrt().add_(distance).square_().mul_(_UP))


_VECTOR: Final = 8


def instantiated_distance(reach: Tensor, terms: int, entries: int, dtype: torch.dtype) -> Tensor:
    """Return by how much ‖G‖ may be off, for G_ij = Σ_t x_it·y_jt over `terms` terms; reach ≥
    ‖X‖‖Y‖.

    Proof: |Ĝ_ij − G_ij| ≤ γ_T Σ_t|x_it||y_jt| ≤ γ_T‖x_i‖‖y_j‖ (Cauchy–Schwarz), whose root sum of
    squares over i, j is γ_T‖X‖‖Y‖; each term that underflows adds the smallest normal number.
    """
    lost = sqrt(entries) * terms * underflow(dtype)
    return (reach * (gamma(terms, dtype) * OUTWARD)).add_(lost * OUTWARD)


def with_distance(gradient: Tensor, distance: Tensor, cotangent: Tensor) -> Squares:
    """Return squares of instantiated gradients [examples, *operand].

    The gradients are kept if they are no larger than the cotangent that they come from.
    """
    found = widened(sum_of_squares(gradient), distance)
    is_small = gradient.numel() <= cotangent.numel()
    return Squares(found.value, found.upper, gradient) if is_small else found


def product(y: Tensor, x: Tensor) -> Tensor:
    """Return Y Xᵀ, computed as the transpose of X Yᵀ if its width suits vector units better."""
    if x.shape[1] % _VECTOR and not y.shape[1] % _VECTOR:
        return torch.bmm(x, y.mT).mT
    return torch.bmm(y, x.mT)


def product_of_grams(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return XᵀX and YᵀY: [examples, positions, positions] each."""
    return torch.bmm(x.mT, x), torch.bmm(y.mT, y)


def from_gram(
    s: Tensor, q: Tensor, reaches: tuple[Tensor, Tensor], terms: tuple[int, int]
) -> Squares:
    """Return ‖Y Xᵀ‖² = Σ_{t,s} (XᵀX)_ts (YᵀY)_ts from the two Gram matrices.

    s, q: [examples, groups, T, T]. reaches: (≥ ‖X‖², ≥ ‖Y‖²) of all groups together; terms: of the
    sums in an entry of s and q.

    Proof: |ΔS_ts| ≤ γ‖x_t‖‖x_s‖, so ‖ΔS‖_F ≤ γ‖X‖², and likewise ‖ΔQ‖_F. From ŜQ̂ − SQ = −ΔS·Q̂ −
    S·ΔQ and Cauchy–Schwarz the sum is off by at most ‖ΔS‖‖Q̂‖ + (‖Ŝ‖ + ‖ΔS‖)‖ΔQ‖; forming it costs
    γ_{T+1}‖Ŝ‖‖Q̂‖ along rows, then float64.
    """
    examples, dtype = len(s), s.dtype
    rows = torch.linalg.vecdot(s, q).reshape(examples, -1)
    value = rows.sum(1, dtype=torch.float64)
    s_norm, q_norm = (squares.upper.sqrt() for squares in sums_of_squares((s, q)))
    positions = s.shape[-1]
    lost = s[0].numel() * underflow(dtype) if examples else 0.0
    s_off = gamma(terms[0], dtype) * reaches[0] + terms[0] * lost
    q_off = gamma(terms[1], dtype) * reaches[1] + terms[1] * lost
    summing = gamma(positions + 1, dtype) + gamma(rows.shape[1] + 2, torch.float64) * 2.0
    error = s_off * q_norm + (s_norm + s_off) * q_off + s_norm * q_norm * summing + lost
    return Squares.within(value, error * OUTWARD)
