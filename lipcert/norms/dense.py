"""The spectral norm of matrices, certified.

What enters: float64 matrices taken as exact. What leaves: an `Upper` within 1e-7 of the largest
of their norms.
"""

from __future__ import annotations

import numpy as np

from lipcert.norms.eigenvalues import largest_eigenvalue
from lipcert.norms.scaling import UNDERFLOW, balanced, largest_norm, restored
from lipcert.upper import ZERO, FloatArray, Upper, gamma

__all__ = ["dense_norm"]


def dense_norm(matrices: FloatArray) -> Upper:
    """Returns B with B ≥ ‖W‖₂ for each matrix W of exact float64 numbers. matrices: [n, out, in].

    Hypotheses: finite entries.
    Proof: with the smaller side first, ‖W‖² = λ_max(W Wᵀ). The computed Gram matrix G satisfies
    |G − W Wᵀ| ≤ γ_n |W||W|ᵀ entry by entry (n: the longer side), so that its 2-norm error is at
    most γ_n ‖W‖_F². λ_max(G) is bounded through a Cholesky factor and its residual
    (`prove_below`). A single row or column is its own Euclidean norm.
    Attained: within 1e-7 relative.
    Reference: Higham 2002, section 3.5; the residual test is in the spirit of Rump 2006.
    """
    if not np.any(matrices):
        return ZERO
    if min(matrices.shape[1:]) == 1:
        scaled, exponent = balanced(matrices)
        return restored(largest_norm(scaled), exponent)
    tall = matrices.shape[1] > matrices.shape[2]
    wide, exponent = balanced(matrices.swapaxes(1, 2) if tall else matrices)
    mass = largest_norm(wide)
    gram = wide @ wide.swapaxes(1, 2)
    square = largest_eigenvalue(gram) + gamma(wide.shape[2]) * mass * mass + UNDERFLOW
    return restored(square.sqrt(), exponent)
