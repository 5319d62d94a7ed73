"""‖W‖₂ ≤ c in float64, with every rounding error bounded beforehand.

Contract: True only if the real number ‖W‖₂ is at most c. False says nothing.

Hypotheses. W has finite float64 entries, taken as exact (checked). Additions and multiplications
round to nearest in binary64, and the matrix product is the conventional one: each entry is a sum
of the products in some order, perhaps with fused multiply-add (not Strassen's). Gradual underflow
is not assumed; η = 2^-1022 covers what is lost either way. The Cholesky factor may come from
anywhere: whatever L is, what it fails to explain is measured.

Proof. Let A = W·2^-k with c·2^-k = s in [1/2, 1), m×n. Scaling loses at most η per entry, so
‖W‖ ≤ 2^k(‖A‖ + mnη). With G = fl(AᵀA), M = fl(LLᵀ) and D = fl(fl(λI − G) − M):
1. ‖G − AᵀA‖_F ≤ γ_m ‖A‖_F² + 4mn·n·η, because |fl(AᵀA) − AᵀA| ≤ γ_m |A|ᵀ|A| + 4mη entrywise and
   ‖ |A|ᵀ|A| ‖_F ≤ ‖A‖_F². In the same way ‖M − LLᵀ‖_F ≤ γ_n ‖L‖_F² + 4n³η.
2. Each subtraction errs by at most u times its result, or η: together
   ‖(λI − G − M) − D‖_F ≤ u(‖B‖_F + ‖D‖_F) + 2nη with B = fl(λI − G).
3. λI − AᵀA = LLᵀ + E with ‖E‖₂ ≤ ‖D‖_F + the sum of 1 and 2, and LLᵀ is positive semidefinite, so
   ‖A‖² ≤ λ + ‖E‖₂.
The claim holds if λ + ‖E‖₂ ≤ (s − mnη)². Sums of squares are bounded by
Σv² ≤ (fl(Σv²) + 2Nη)/(1 − γ_N); all else is exact rational arithmetic. If ‖A‖_F² alone is within
the claim, no factor is needed.

Attained up to a relative slack of about n·u·(1 + n) of c², 1e-10 for n = 1024.
References: S. M. Rump, Verification of positive definiteness, BIT 46 (2006); N. J. Higham,
Accuracy and Stability of Numerical Algorithms, sections 3.1, 3.5 and 10.1.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.checker.arithmetic import sqrt_up
from lipcert.checker.norms.claim import FloatMatrix, NormClaim

__all__ = ["norm_at_most_float"]

_U: Final = Fraction(1, 1 << 53)
_ETA: Final = Fraction(1, 1 << 1022)


def norm_at_most_float(matrix: FloatMatrix, claim: float) -> bool:
    """Whether ‖matrix‖₂ ≤ claim could be proved in float64."""
    found = NormClaim.of(matrix, claim)
    if isinstance(found, bool):
        return found
    A = np.ldexp(found.matrix, -found.exponent)
    rows, columns = A.shape
    target = (Fraction(found.fraction) - rows * columns * _ETA) ** 2
    frobenius = _square_sum(A)
    if frobenius <= target:
        return True
    G = A.T @ A
    gram_error = _gamma(rows) * frobenius + 4 * rows * columns**2 * _ETA
    level = float(target - 2 * (gram_error + _gamma(columns) * columns))
    rest = _unexplained(level, G)
    return rest is not None and Fraction(level) + rest + gram_error <= target


def _unexplained(level: float, G: FloatMatrix) -> Fraction | None:
    """An upper bound of ‖level·I − G − LLᵀ‖₂ for some lower triangular L, None for no such L."""
    n = len(G)
    B: FloatMatrix = level * np.eye(n) - G
    try:
        L = np.asarray(np.linalg.cholesky(B), dtype=np.float64)
    except np.linalg.LinAlgError:
        return None
    if not (np.abs(L) <= 1.0).all():  # a factor of B, whose diagonal is below 1, has no such entry
        return None
    D: FloatMatrix = B - L @ L.T
    measured = _norm(D)
    product_error = _gamma(n) * _square_sum(L) + 4 * n**3 * _ETA
    return measured + product_error + _U * (_norm(B) + measured) + 2 * n * _ETA


def _norm(array: FloatMatrix) -> Fraction:
    return Fraction(sqrt_up(_square_sum(array)))


def _square_sum(array: FloatMatrix) -> Fraction:
    """An upper bound of Σ v²."""
    flat = array.ravel()
    computed = Fraction(float(np.dot(flat, flat)))
    return (computed + 2 * flat.size * _ETA) / (1 - _gamma(flat.size))


def _gamma(terms: int) -> Fraction:
    """γ_n = n·u/(1 − n·u); n is below 2^33 here."""
    return terms * _U / (1 - terms * _U)
