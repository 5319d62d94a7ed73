"""‖W‖₂ ≤ c in exact integers, and λ_min(M) ≥ c, of which `definite` holds the proof.

Contract: True only if the real number ‖W‖₂ is at most c. False says nothing.

Hypotheses. W has finite float64 entries, taken as exact (checked). Float64 sums and products of
integers are exact as long as the results are integers of magnitude at most 2^53, in any order,
blocked or fused: nothing else is asked of the matrix product. The Cholesky factor may come from
anywhere.

Proof. Let c·2^-k = s in [1/2, 1) and X = the entries of W·2^-k in units of 2^-42, rounded to
integers: |x_ij| ≤ 2^42, since |w_ij| ≤ c, and ‖W·2^-k − X·2^-42‖_F ≤ ω·2^-42 with 2ω ≥ √(mn). Let
Y be integers, |y_ij| ≤ 2^42, anyhow obtained: here a Cholesky factor in the same units. For every
integer λ, in units of 2^-84, λI − XᵀX = YYᵀ + E with E = λI − XᵀX − YYᵀ, and YYᵀ is positive
semidefinite, so ‖X‖² ≤ λ + ‖E‖_∞ (E is symmetric). The claim holds if
λ + ‖E‖_∞ ≤ (s·2^42 − ω)², a comparison of integers after multiplication by 2^22.

How E is exact: `layers`.

Attained up to a relative slack of about n·2^-42 of c², 5e-10 for n = 1024.
Reference: S. M. Rump, Verification of positive definiteness, BIT 46 (2006), for the idea; the
residual in integers is elementary.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.budget import spend
from lipcert.core.norms.claim import FloatMatrix, NormClaim
from lipcert.core.norms.definite import shift_of
from lipcert.core.norms.layers import BITS, Layers, unexplained

_ROUNDED: Final = Fraction(1, 1 << 64)
"""of an entry of M"""


def norm_at_most_exact(matrix: FloatMatrix, claim: float) -> bool:
    """Whether ‖matrix‖₂ ≤ claim could be proved in integers."""
    spend()
    found = NormClaim.of(matrix, claim)
    if isinstance(found, bool):
        return found
    rows, columns = found.matrix.shape
    X = np.ldexp(found.matrix, BITS - found.exponent)
    np.rint(X, out=X)
    omega = math.isqrt(rows * columns) // 2 + 1
    reach = int(math.ldexp(found.fraction, 53)) - (omega << 11)  # s·2^42 − ω, times 2^11
    target = reach * reach  # in units of 2^-106, that is 2^-22 of those of λ
    gram = Layers.gram(X)
    if gram.trace() << 22 <= target:
        return True
    margin = (columns << BITS) + (omega << (BITS + 2))
    level = (target >> 22) - margin
    rest = unexplained(Layers.diagonal(level, columns) - gram)
    return rest is not None and (level + rest) << 22 <= target


def definite_exact(matrix: FloatMatrix, least: Fraction) -> bool:
    """Whether λ_min(M) ≥ c could be proved in integers."""
    shift = shift_of(matrix, least)
    if shift is None:
        return False
    n, unit = len(matrix), 1 << 2 * BITS
    level = math.ceil(Fraction(shift) * unit)
    rest = unexplained(Layers.nearest(matrix) - Layers.diagonal(level, n))
    return rest is not None and Fraction(rest - level, unit) + n * _ROUNDED <= -least
