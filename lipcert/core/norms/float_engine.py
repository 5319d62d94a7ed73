"""‖W‖₂ ≤ c in float64, with every rounding error bounded beforehand.

Contract: True only if the real number ‖W‖₂ is at most c. False says nothing.

Hypotheses. W has finite float64 entries, taken as exact (checked). Additions and multiplications
round to nearest in binary64, and the matrix product is the conventional one: each entry is a sum
of the products in some order, perhaps with fused multiply-add (not Strassen's). Gradual underflow
is not assumed; η = 2^-1022 covers what is lost either way. The Cholesky factor may come from
anywhere: whatever L is, what it fails to explain is measured.

Proof. Let A = W·2^-k with c·2^-k = s in [1/2, 1), m×n. Scaling loses at most η per entry, so
‖W‖ ≤ 2^k(‖A‖ + mnη). With G = fl(AᵀA) and B = fl(λI − G):
1. G may be a sum over parts of the rows: every entry is a sum of its products in some order.
   ‖G − AᵀA‖_F ≤ γ_m ‖A‖_F² + 4mn·n·η, because |fl(AᵀA) − AᵀA| ≤ γ_m |A|ᵀ|A| + 4mη entrywise and
   ‖ |A|ᵀ|A| ‖_F ≤ ‖A‖_F².
2. ‖(λI − G) − B‖_F ≤ u‖B‖_F: one subtraction for each entry, which does not underflow.
3. λI − AᵀA = LLᵀ + E with ‖E‖₂ at most the sum of 1, 2 and what `residual` measures of B, and LLᵀ
   is positive semidefinite, so ‖A‖² ≤ λ + ‖E‖₂.
The claim holds if λ + ‖E‖₂ ≤ (s − mnη)². Sums of squares are bounded by
Σv² ≤ (fl(Σv²) + 2Nη)/(1 − γ_N); all else is exact rational arithmetic. If ‖A‖_F² alone is within
the claim, no factor is needed.

Attained up to a relative slack of about n·u·(1 + n) of c², 1e-10 for n = 1024.
References: S. M. Rump, Verification of positive definiteness, BIT 46 (2006); N. J. Higham,
Accuracy and Stability of Numerical Algorithms, sections 3.1, 3.5 and 10.1.
"""

from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.norms.claim import FloatMatrix, NormClaim, shift_of
from lipcert.core.norms.residual import ETA, U, gamma, norm, square_sum, unexplained

_PART: Final = 1 << 24
"""entries of a matrix that are scaled at once"""


def norm_at_most_float(matrix: FloatMatrix, claim: float) -> bool:
    """Whether ‖matrix‖₂ ≤ claim could be proved in float64."""
    spend()
    found = NormClaim.of(matrix, claim)
    if isinstance(found, bool):
        return found
    rows, columns = found.matrix.shape
    target = (Fraction(found.fraction) - rows * columns * ETA) ** 2
    parts = np.array_split(found.matrix, 1 + found.matrix.size // _PART)
    frobenius = sum((square_sum(np.ldexp(part, -found.exponent)) for part in parts), Fraction(0))
    if frobenius <= target:
        return True
    scaled = (np.ldexp(part, -found.exponent) for part in parts)
    G: FloatMatrix = sum((part.T @ part for part in scaled), np.zeros((columns, columns)))
    return gram_at_most(G, rows, frobenius, target)


def gram_at_most(G: FloatMatrix, rows: int, frobenius: Fraction, target: Fraction) -> bool:
    """Whether ‖A‖² ≤ target could be proved from G = fl(AᵀA).

    rows: of A; frobenius ≥ ‖A‖_F². G is overwritten.
    """
    columns = len(G)
    gram_error = gamma(rows) * frobenius + 4 * rows * columns**2 * ETA
    level = float(target - 2 * (gram_error + gamma(columns) * columns))
    B = np.negative(G, out=G)
    np.einsum("ii->i", B)[:] += level
    rest = unexplained(B)
    error = gram_error + U * norm(B)
    return rest is not None and Fraction(level) + rest + error <= target


def definite_float(matrix: FloatMatrix, least: Fraction) -> bool:
    """Whether λ_min(M) ≥ c could be proved in float64, as `claim.shift_of` says."""
    shift = shift_of(matrix, least)
    if shift is None:
        return False
    B = matrix.copy()
    np.einsum("ii->i", B)[:] -= shift
    rest = unexplained(B)
    return rest is not None and rest + U <= Fraction(shift) - least
