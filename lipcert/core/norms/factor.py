"""Triangular factors, proposed in float64: nothing here is trusted.

Computes the Cholesky factor of a symmetric matrix by panels of columns that leave out rows and
columns of zeros, because the matrices of chains are mostly zero.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.norms.claim import FloatMatrix

_PANEL: Final = 192


def lower_factor(B: FloatMatrix, columns: int | None = None) -> FloatMatrix | None:
    """L with L Lᵀ ≈ B, or its first columns; None where these are not positive definite."""
    n = len(B)
    stop_at = n if columns is None else columns
    try:
        if stop_at == n and (n <= 2 * _PANEL or np.count_nonzero(B) > B.size // 2):
            return np.asarray(np.linalg.cholesky(B), dtype=np.float64)
        L = np.zeros((n, stop_at))
        for start in range(0, stop_at, _PANEL):
            spend()
            _fill(L, B, start, min(start + _PANEL, stop_at))
    except np.linalg.LinAlgError:
        return None
    return L


def _fill(L: FloatMatrix, B: FloatMatrix, start: int, stop: int) -> None:
    """One panel of columns, from those before it."""
    used = np.flatnonzero(L[start:stop, :start].any(axis=0))
    first = int(used[0]) if used.size else start
    own = L[start:stop, first:start]
    top = np.linalg.cholesky(B[start:stop, start:stop] - own @ own.T)
    L[start:stop, start:stop] = top
    rows = L[stop:, first:start]
    below = B[stop:, start:stop]
    filled = np.flatnonzero(below.any(axis=1) | rows.any(axis=1))
    if filled.size:
        rest = below[filled] - rows[filled] @ own.T
        L[stop + filled, start:stop] = np.linalg.solve(top, rest.T).T
