"""The spectral norm of a matrix, certified.

What enters: a float64 matrix taken as exact. What leaves: an `Upper` within 1e-7 of its norm.
"""

from __future__ import annotations

import numpy as np

from lipcert.norms.eigenvalues import largest_eigenvalue
from lipcert.norms.scaling import UNDERFLOW, balanced, restored
from lipcert.upper import ZERO, FloatArray, Upper, gamma, norm

__all__ = ["dense_norm"]


def dense_norm(matrix: FloatArray) -> Upper:
    """Returns B with B ≥ ‖W‖₂ for the matrix W of exact float64 numbers.

    Hypotheses: finite entries.
    Proof: with the smaller side first, ‖W‖² = λ_max(W Wᵀ). The computed Gram matrix G satisfies
    |G − W Wᵀ| ≤ γ_n |W||W|ᵀ entry by entry (n: the longer side), so that its 2-norm error is at
    most γ_n ‖W‖_F². λ_max(G) is bounded through a Cholesky factor and its residual
    (`prove_below`). A single row or column is its own Euclidean norm.
    Attained: within 1e-7 relative.
    Reference: Higham 2002, section 3.5; the residual test is in the spirit of Rump 2006.
    """
    if not np.any(matrix):
        return ZERO
    if min(matrix.shape) == 1:
        return norm(matrix)
    wide, exponent = balanced(matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T)
    mass = norm(wide)
    square = largest_eigenvalue(wide @ wide.T) + gamma(wide.shape[1]) * mass * mass + UNDERFLOW
    return restored(square.sqrt(), exponent)
