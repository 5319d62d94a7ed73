"""‖W‖₂ ≤ c in exact integers, and λ_min(M) ≥ c, of which `claim.shift_of` holds the proof.

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

How E is exact: `Layers`.

Attained up to a relative slack of about n·2^-42 of c², 5e-10 for n = 1024.
Reference: S. M. Rump, Verification of positive definiteness, BIT 46 (2006), for the idea; the
residual in integers is elementary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.budget import spend
from lipcert.core.norms.claim import FloatMatrix, NormClaim, shift_of
from lipcert.core.norms.residual import lower_factor

Integers: TypeAlias = npt.NDArray[np.int64]

BITS: Final = 42
"""a matrix X stands for X·2^-42, a product XᵀX for XᵀX·2^-84"""
_HALF: Final = 21
_MASK: Final = (1 << _HALF) - 1
_BLOCK: Final = 1 << 11
_ROOM: Final = 1 << 18
_LOW: Final = 31


def unexplained(target: Layers) -> int | None:
    """‖target − YYᵀ‖_∞ ≥ ‖·‖₂ for some integer matrix Y, None for no such Y.

    Hypotheses: `target` is symmetric. Y is a Cholesky factor, rounded.
    """
    L = lower_factor(target.approximation())
    if L is None or not (np.abs(L) <= 1.0).all():
        return None
    Y = np.rint(np.ldexp(L, BITS))
    return (target - Layers.gram(Y.T)).row_sum_norm()


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """A symmetric integer matrix of up to 104 bits, 2^42·first + 2^21·second + third.

    How XᵀX is exact, for integers |x| ≤ 2^42: X = 2^21·H + T with |h| ≤ 2^21 and |t| ≤ 2^20, so
    that XᵀX = 2^42·HᵀH + 2^21·(HᵀT + TᵀH) + TᵀT. Products of at most 2^11 terms are formed by
    float64 matrix products, whose partial sums are integers of at most 2^53, and added as 64-bit
    integers: at most 2^20 terms of at most 2^42 in all. What is built from such matrices is kept as
    three such layers; if its entries are below 2^61, carrying from layer to layer makes them one
    64-bit integer each; if not, nothing is claimed.
    """

    layers: tuple[Integers, Integers, Integers]

    @classmethod
    def gram(cls, X: FloatMatrix) -> Layers:
        """XᵀX for integers |x| ≤ 2^42 in at most 2^20 rows."""
        n = X.shape[1]
        first, second, third = (np.zeros((n, n), dtype=np.int64) for _ in range(3))
        for start in range(0, len(X), _BLOCK):
            spend()
            block = X[start : start + _BLOCK]
            high = np.rint(np.ldexp(block, -_HALF))
            low = block - np.ldexp(high, _HALF)
            cross = (high.T @ low).astype(np.int64)
            first += (high.T @ high).astype(np.int64)
            second += cross + cross.T
            third += (low.T @ low).astype(np.int64)
        return cls((first, second, third))

    @classmethod
    def diagonal(cls, level: int, size: int) -> Layers:
        """level·I, in units of 2^-84, for 0 ≤ level < 2^104."""
        one = np.eye(size, dtype=np.int64)
        digits = (level >> BITS, (level >> _HALF) & _MASK, level & _MASK)
        return cls((one * digits[0], one * digits[1], one * digits[2]))

    @classmethod
    def nearest(cls, matrix: FloatMatrix) -> Layers:
        """A matrix of entries below 1 in units of 2^-84, each within 2^-64 of the original."""
        scaled = np.ldexp(matrix, BITS)
        first = np.rint(scaled)
        second = np.rint(np.ldexp(scaled - first, _HALF))
        zero = np.zeros(matrix.shape, dtype=np.int64)
        return cls((first.astype(np.int64), second.astype(np.int64), zero))

    def __sub__(self, other: Layers) -> Layers:
        first, second, third = (x - y for x, y in zip(self.layers, other.layers, strict=True))
        return Layers((first, second, third))

    def trace(self) -> int:
        """The sum of the diagonal."""
        first, second, third = (sum(np.diagonal(layer).tolist()) for layer in self.layers)
        return int((first << BITS) + (second << _HALF) + third)

    def approximation(self) -> FloatMatrix:
        """The matrix in units of 1 instead of 2^-84, rounded."""
        first, second, third = (layer.astype(np.float64) for layer in self.layers)
        return (first * 2.0**-42 + second * 2.0**-63) + third * 2.0**-84

    def row_sum_norm(self) -> int | None:
        """The largest sum of magnitudes along a row, None where an entry is too large."""
        first, second, third = self.layers
        second = second + (third >> _HALF)
        first = first + (second >> _HALF)
        if not ((first >= -_ROOM) & (first < _ROOM)).all():
            return None
        entries = (first << BITS) + ((second & _MASK) << _HALF) + (third & _MASK)
        sizes = np.abs(entries)
        high = (sizes >> _LOW).sum(axis=1).tolist()
        low = (sizes & ((1 << _LOW) - 1)).sum(axis=1).tolist()
        return int(max((h << _LOW) + l for h, l in zip(high, low, strict=True)))


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
