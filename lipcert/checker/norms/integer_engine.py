"""‖W‖₂ ≤ c in exact integers.

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

How E is exact: X = 2^21·H + T with |h| ≤ 2^21 and |t| ≤ 2^20, so that
XᵀX = 2^42·HᵀH + 2^21·(HᵀT + TᵀH) + TᵀT. Products of at most 2^11 terms are formed by float64
matrix products, whose partial sums are integers of at most 2^53, and added as 64-bit integers:
at most 2^20 terms of at most 2^42 in all. E is kept as three such layers; if its entries are below
2^61, carrying from layer to layer makes them one 64-bit integer each; if not, nothing is claimed.

Attained up to a relative slack of about n·2^-42 of c², 5e-10 for n = 1024.
Reference: S. M. Rump, Verification of positive definiteness, BIT 46 (2006), for the idea; the
residual in integers is elementary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from lipcert.checker.norms.claim import FloatMatrix, NormClaim

__all__ = ["norm_at_most_exact"]

Integers: TypeAlias = npt.NDArray[np.int64]

_BITS: Final = 42
_HALF: Final = 21
_MASK: Final = (1 << _HALF) - 1
_BLOCK: Final = 1 << 11
_ROOM: Final = 1 << 18
_LOW: Final = 31


def norm_at_most_exact(matrix: FloatMatrix, claim: float) -> bool:
    """Whether ‖matrix‖₂ ≤ claim could be proved in integers."""
    found = NormClaim.of(matrix, claim)
    if isinstance(found, bool):
        return found
    rows, columns = found.matrix.shape
    X = np.rint(np.ldexp(found.matrix, _BITS - found.exponent))
    omega = math.isqrt(rows * columns) // 2 + 1
    reach = int(math.ldexp(found.fraction, 53)) - (omega << 11)  # s·2^42 − ω, times 2^11
    target = reach * reach  # in units of 2^-106, that is 2^-22 of those of λ
    gram = _Layers.gram(X)
    if gram.trace() << 22 <= target:
        return True
    margin = (columns << _BITS) + (omega << (_BITS + 2))
    level = (target >> 22) - margin
    rest = _unexplained(level, gram)
    return rest is not None and (level + rest) << 22 <= target


def _unexplained(level: int, gram: _Layers) -> int | None:
    """‖level·I − gram − YYᵀ‖_∞ for some integer matrix Y, None for no such Y."""
    n = len(gram.layers[0])
    B = math.ldexp(float(level), -2 * _BITS) * np.eye(n) - gram.approximation()
    try:
        L = np.linalg.cholesky(B)
    except np.linalg.LinAlgError:
        return None
    if not (np.abs(L) <= 1.0).all():
        return None
    Y = np.rint(np.ldexp(L, _BITS))
    return _Layers.residual(level, gram, _Layers.gram(Y.T)).row_sum_norm()


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Layers:
    """A symmetric integer matrix, 2^42·first + 2^21·second + third."""

    layers: tuple[Integers, Integers, Integers]

    @classmethod
    def gram(cls, X: FloatMatrix) -> _Layers:
        """XᵀX for integers |x| ≤ 2^42 in at most 2^20 rows."""
        n = X.shape[1]
        first, second, third = (np.zeros((n, n), dtype=np.int64) for _ in range(3))
        for start in range(0, len(X), _BLOCK):
            block = X[start : start + _BLOCK]
            high = np.rint(np.ldexp(block, -_HALF))
            low = block - np.ldexp(high, _HALF)
            cross = (high.T @ low).astype(np.int64)
            first += (high.T @ high).astype(np.int64)
            second += cross + cross.T
            third += (low.T @ low).astype(np.int64)
        return cls((first, second, third))

    @classmethod
    def residual(cls, level: int, a: _Layers, b: _Layers) -> _Layers:
        """level·I − a − b."""
        digits = (level >> _BITS, (level >> _HALF) & _MASK, level & _MASK)
        first, second, third = (-(x + y) for x, y in zip(a.layers, b.layers, strict=True))
        for layer, digit in zip((first, second, third), digits, strict=True):
            np.einsum("ii->i", layer)[:] += digit
        return cls((first, second, third))

    def trace(self) -> int:
        """The sum of the diagonal."""
        first, second, third = (sum(np.diagonal(layer).tolist()) for layer in self.layers)
        return int((first << _BITS) + (second << _HALF) + third)

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
        entries = (first << _BITS) + ((second & _MASK) << _HALF) + (third & _MASK)
        sizes = np.abs(entries)
        high = (sizes >> _LOW).sum(axis=1).tolist()
        low = (sizes & ((1 << _LOW) - 1)).sum(axis=1).tolist()
        return int(max((h << _LOW) + l for h, l in zip(high, low, strict=True)))
