"""λ_min(M) ≥ c for a symmetric matrix, proved by one Cholesky factor in either arithmetic.

Contract: True only if every x has xᵀMx ≥ c‖x‖². False says nothing.

Proof. Let s = c + n·2^-42. If M − sI = LLᵀ + E, then λ_min(M) ≥ s − ‖E‖₂, which is at least c
where ‖E‖₂ ≤ n·2^-42; `residual` and `layers` measure E for their factors. In float64 the diagonal
of M − sI is rounded, by at most u, since |m_ii| < 1 and s < 1. In integers, entries are rounded to
2^-64, which changes M by at most n·2^-64 in the norm, and s is rounded up.

To be expected where λ_min(M) ≥ c + n·2^-41, for n ≤ 4096 and diagonals below ½.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np

from lipcert.core.arithmetic import round_up
from lipcert.core.budget import spend
from lipcert.core.norms import residual
from lipcert.core.norms.claim import FloatMatrix

Definite: TypeAlias = Callable[[FloatMatrix, Fraction], bool]
"""whether λ_min(M) ≥ c could be proved"""

MAX_SIZE: Final = 1 << 12


def definite_float(matrix: FloatMatrix, least: Fraction) -> bool:
    """Whether `definite` holds, proved in float64."""
    shift = shift_of(matrix, least)
    if shift is None:
        return False
    B = matrix.copy()
    np.einsum("ii->i", B)[:] -= shift
    rest = residual.unexplained(B)
    return rest is not None and rest + residual.U <= Fraction(shift) - least


def room_for(size: int) -> Fraction:
    """How far above c the lowest eigenvalue should be, for a proof."""
    return Fraction(size, 1 << 41)


def shift_of(matrix: FloatMatrix, least: Fraction) -> float | None:
    """s; None unless 0 ≤ s < 1 and the matrix is symmetric, of entries below 1, not too large."""
    spend()
    if len(matrix) > MAX_SIZE or not (np.abs(matrix) < 1.0).all() or (matrix != matrix.T).any():
        return None
    shift = round_up(least + room_for(len(matrix)) / 2)
    return shift if 0.0 <= shift < 1.0 else None
