"""Squares: squared norms of one tensor per example, with their own error bounds.

What enters: tensors [examples, ...]. What leaves: float64 squares and bounds of how far they are
off. Invariant: |value − exact square| ≤ error wherever both are finite; NaN and infinity stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.layout import in_memory_order
from lipcert.audit.gradient_norms.rounding import OUTWARD, gamma, underflow
from lipcert.audit.measured import Measured

_BLOCK: Final = 256


@final
@dataclass(frozen=True, slots=True, eq=False)
class Squares:
    """Squared norms and their error bounds, one for each example.  # float64 [examples] each"""

    value: Tensor
    error: Tensor

    @classmethod
    def zeros(cls, examples: int, device: torch.device) -> Squares:
        """The squares of zero gradients, exactly."""
        zeros = torch.zeros(examples, dtype=torch.float64, device=device)
        return cls(zeros, zeros)

    @classmethod
    def joined(cls, parts: list[Squares]) -> Squares:
        """The squares of consecutive chunks of examples."""
        if len(parts) == 1:
            return parts[0]
        return cls(torch.cat([p.value for p in parts]), torch.cat([p.error for p in parts]))

    @property
    def upper(self) -> Tensor:
        """An upper bound of the exact squares."""
        return (self.value + self.error) * OUTWARD

    def summed(self, groups: int) -> Squares:
        """Of tensors that consist of so many consecutive ones each."""
        value = self.value.reshape(-1, groups).sum(1)
        error = self.error.reshape(-1, groups).sum(1) + value * gamma(groups, torch.float64)
        return Squares(value, error * OUTWARD)

    def at(self, where: slice | Tensor) -> Squares:
        """Those of some examples."""
        return Squares(self.value[where], self.error[where])

    def plus(self, other: Squares) -> Squares:
        """Squares of two orthogonal parts; the one rounding per entry is covered."""
        value = self.value + other.value
        return Squares(value, (self.error + other.error) * OUTWARD + value.abs() * 2.0**-52)

    def times(self, factor: float) -> Squares:
        """Squares of tensors multiplied by √factor."""
        if factor == 1.0:
            return self
        value = self.value * factor
        return Squares(value, self.error * factor * OUTWARD + value.abs() * 2.0**-52)

    def is_wide(self, relative: float) -> Tensor:
        """Which examples are not known well enough: error of the norm > relative · norm.

        Norms below 1e-15 count as known, values that are not finite as unknown.
        """
        return ~(self.error < self.value * (2.0 * relative) + 1e-30)

    def replaced(self, where: Tensor, by: Squares) -> Squares:
        """These squares, with those at the indices `where` replaced."""
        value, error = self.value.index_copy(0, where, by.value), self.error
        return Squares(value, error.index_copy(0, where, by.error))

    def measured(self) -> Measured:
        """The norms.

        Proof: let v = value, e = error, s the exact square. |√v − √s| = |v − s|/(√v + √s), and
        s ≥ v − e; where that is of no use, |√v − √s| ≤ √|v − s| ≤ √e.
        """
        norm = self.value.clamp_min(0.0).sqrt()
        least = (self.value - self.error).clamp_min(0.0).sqrt()
        quotient = torch.where(norm > 0.0, self.error / (norm + least), torch.inf)
        error = torch.minimum(quotient, self.error.sqrt()) * OUTWARD + norm * 2.0**-51
        return Measured(norm.cpu().numpy(), error.cpu().numpy())


def sum_of_squares(tensor: Tensor) -> Squares:
    """‖tensor[i]‖² of every example i.

    Proof: a block of n ≤ 256 entries is summed in the tensor's own dtype: error ≤ γ_n, and its
    root, which is rounded once, is squared in float64: together ≤ γ_{n+4} relative. The blocks are
    added in float64. Squares that underflow lose at most the smallest normal number each.
    """
    rows = in_memory_order(tensor).reshape(len(tensor), -1)
    length = rows.shape[1]
    whole = length // _BLOCK * _BLOCK
    parts = []
    if whole:
        blocks = rows[:, :whole].reshape(len(rows), whole // _BLOCK, _BLOCK)
        parts.append(torch.linalg.vector_norm(blocks, dim=2).double().square().sum(1))
    if whole < length:
        parts.append(torch.linalg.vector_norm(rows[:, whole:], dim=1).double().square())
    if not parts:
        return Squares.zeros(len(rows), tensor.device)
    value = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    relative = gamma(min(length, _BLOCK) + 4, tensor.dtype)
    relative = relative + gamma(length // _BLOCK + 4, torch.float64)
    share = relative * (1.0 + 2.0 * relative) * OUTWARD
    return Squares(value, value * share + length * underflow(tensor.dtype) * OUTWARD)


def widened(squares: Squares, distance: Tensor) -> Squares:
    """Squares of tensors that are themselves off by `distance` (2-norm) from the exact ones.

    Proof: |‖G‖² − ‖Ĝ‖²| ≤ η(2‖Ĝ‖ + η).
    """
    reach = distance * (2.0 * squares.upper.clamp_min(0.0).sqrt() + distance)
    return Squares(squares.value, (squares.error + reach) * OUTWARD)
