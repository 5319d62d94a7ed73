"""‖Y Xᵀ‖² for batches of matrices X [rows, positions] and Y [columns, positions].

What enters: matrices [examples·groups, ..., positions]. What leaves: squares per example. Every
layer whose gradient is a matrix product ends here; groups are blocks of one example's gradient.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import torch
from torch import Tensor

from lipcert.audit.gradient_norms.rounding import OUTWARD, gamma, underflow
from lipcert.audit.gradient_norms.squares import Squares, sum_of_squares, widened

_VECTOR: Final = 8


def instantiated_distance(reach: Tensor, terms: int, entries: int, dtype: torch.dtype) -> Tensor:
    """By how much ‖G‖ may be off, for G_ij = Σ_t x_it·y_jt over `terms` terms; reach ≥ ‖X‖‖Y‖.

    Proof: |Ĝ_ij − G_ij| ≤ γ_T Σ_t|x_it||y_jt| ≤ γ_T‖x_i‖‖y_j‖ (Cauchy–Schwarz), whose root sum
    of squares over i, j is γ_T‖X‖‖Y‖; each term that underflows adds the smallest normal number.
    """
    lost = sqrt(entries) * terms * underflow(dtype)
    return (reach * gamma(terms, dtype) + lost) * OUTWARD


def with_distance(gradient: Tensor, examples: int, distance: Tensor) -> Squares:
    """Squares of instantiated gradients [examples·groups, ...]."""
    return widened(sum_of_squares(gradient.reshape(examples, -1)), distance)


def product(y: Tensor, x: Tensor) -> Tensor:
    """Y Xᵀ; as the transpose of X Yᵀ where that has the better width for vector units."""
    if x.shape[1] % _VECTOR and not y.shape[1] % _VECTOR:
        return torch.bmm(x, y.mT).mT
    return torch.bmm(y, x.mT)


def product_of_grams(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """XᵀX and YᵀY: [examples, positions, positions] each."""
    return torch.bmm(x.mT, x), torch.bmm(y.mT, y)


def from_gram(
    s: Tensor, q: Tensor, reaches: tuple[Tensor, Tensor], terms: tuple[int, int]
) -> Squares:
    """‖Y Xᵀ‖² = Σ_{t,s} (XᵀX)_ts (YᵀY)_ts from the two Gram matrices.  # [examples, groups, T, T]

    reaches: (≥ ‖X‖², ≥ ‖Y‖²) of all groups together; terms: of the sums in an entry of s and q.

    Proof: |ΔS_ts| ≤ γ‖x_t‖‖x_s‖, so ‖ΔS‖_F ≤ γ‖X‖², and likewise ‖ΔQ‖_F. From
    ŜQ̂ − SQ = −ΔS·Q̂ − S·ΔQ and Cauchy–Schwarz the sum is off by at most
    ‖ΔS‖‖Q̂‖ + (‖Ŝ‖ + ‖ΔS‖)‖ΔQ‖; forming it costs γ_{T+1}‖Ŝ‖‖Q̂‖ along rows, then float64.
    """
    examples, dtype = len(s), s.dtype
    rows = torch.linalg.vecdot(s, q).reshape(examples, -1)
    value = rows.sum(1, dtype=torch.float64)
    s_norm = sum_of_squares(s).upper.sqrt()
    q_norm = sum_of_squares(q).upper.sqrt()
    positions = s.shape[-1]
    lost = s[0].numel() * underflow(dtype) if examples else 0.0
    s_off = gamma(terms[0], dtype) * reaches[0] + terms[0] * lost
    q_off = gamma(terms[1], dtype) * reaches[1] + terms[1] * lost
    summing = gamma(positions + 1, dtype) + gamma(rows.shape[1] + 2, torch.float64) * 2.0
    error = s_off * q_norm + (s_norm + s_off) * q_off + s_norm * q_norm * summing + lost
    return Squares(value, error * OUTWARD)
