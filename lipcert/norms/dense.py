"""The spectral norm of matrices, certified.

What enters: float64 matrices taken as exact. What leaves: an `Upper` within 1e-7 of the largest
of their norms.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.blas import dsyrk

from lipcert.norms.eigenvalues import largest_eigenvalue
from lipcert.norms.scaling import (
    UNDERFLOW,
    balance_of,
    balanced_slices,
    largest_frobenius_norm,
    largest_norm,
    restored,
)
from lipcert.upper import ZERO, FloatArray, Upper, gamma, root_sum_square


def dense_norm(matrices: FloatArray) -> Upper:
    """Returns B with B ≥ ‖W‖₂ for each matrix W of exact float64 numbers. matrices: [n, out, in].

    Hypotheses: finite entries.
    Proof: with the smaller side first, ‖W‖² = λ_max(W Wᵀ). The computed Gram matrix G satisfies
    |G − W Wᵀ| ≤ γ_n |W||W|ᵀ entry by entry (n: the longer side), so that its 2-norm error is at
    most γ_n ‖W‖_F²; adding up Gram matrices of portions of columns only changes the order of
    summation. λ_max(G) is bounded through a Cholesky factor and its residual (`prove_below`).
    A single row or column is its own Euclidean norm.
    Attained: within 1e-7 relative.
    Reference: Higham 2002, section 3.5; the residual test is in the spirit of Rump 2006.
    """
    if not np.any(matrices):
        return ZERO
    if min(matrices.shape[1:]) == 1:
        return largest_frobenius_norm(matrices)
    tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.swapaxes(1, 2) if tall else matrices
    exponent = balance_of(wide)
    gram, mass = _gram(wide, exponent)
    square = largest_eigenvalue(gram) + gamma(wide.shape[2] + 2) * mass * mass + UNDERFLOW
    return restored(square.sqrt(), exponent)


def _gram(wide: FloatArray, exponent: int) -> tuple[FloatArray, Upper]:
    """W Wᵀ of each matrix over 2^exponent, and a bound of their Frobenius norms."""
    count, rows, _ = wide.shape
    masses = []
    gram = np.zeros((count, rows, rows))
    for part in balanced_slices(wide, exponent):
        masses.append(largest_norm(part))
        if count == 1:
            columns = np.asfortranarray(part[0].T)
            gram = dsyrk(1.0, columns, 1.0, gram[0].T, trans=1, overwrite_c=1).T[None]
        else:
            gram += part @ part.swapaxes(1, 2)
    if count == 1:
        gram[0] += np.tril(gram[0], -1).T
    return gram, root_sum_square(masses)
