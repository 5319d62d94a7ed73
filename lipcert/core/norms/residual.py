"""B = LLᵀ + E in float64: a triangular factor from anywhere, and how large E is at most.

Hypotheses. Additions and multiplications round to nearest in binary64, and the matrix product is
the conventional one: each entry is a sum of the products in some order, perhaps with fused
multiply-add (not Strassen's). Gradual underflow is not assumed; η = 2^-1022 covers what is lost.

Proof. With M = fl(LLᵀ) and D = fl(B − M): ‖M − LLᵀ‖_F ≤ γ_n ‖L‖_F² + 4n³η, because
|M − LLᵀ| ≤ γ_n |L||L|ᵀ + 4nη entrywise, and no entry needs a sum of more terms than L has columns
that are not 0 in a panel of rows: that number serves in γ. Each subtraction errs by at most u times
its result, or η.

Factors are proposed in float64, and nothing of them is trusted: by panels of columns that leave out
rows and columns of zeros, because the matrices of chains are mostly zero.
"""

from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import sqrt_up
from lipcert.core.budget import spend
from lipcert.core.interval import largest_magnitude
from lipcert.core.norms.claim import FloatMatrix

_COLUMNS: Final = 192
"""of a panel of a factor"""


def lower_factor(B: FloatMatrix, columns: int | None = None) -> FloatMatrix | None:
    """Return L with L Lᵀ ≈ B, or its first columns; None if B is not positive definite there."""
    n = len(B)
    stop_at = n if columns is None else columns
    try:
        if stop_at == n and (n <= 2 * _COLUMNS or np.count_nonzero(B) > B.size // 2):
            return np.asarray(np.linalg.cholesky(B), dtype=np.float64)
        L = np.zeros((n, stop_at))
        for start in range(0, stop_at, _COLUMNS):
            spend()
            _fill(L, B, start, min(start + _COLUMNS, stop_at))
    except np.linalg.LinAlgError:
        return None
    return L


def _fill(L: FloatMatrix, B: FloatMatrix, start: int, stop: int) -> None:
    """Compute one panel of columns from the panels before it."""
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


U: Final = Fraction(1, 1 << 53)
ETA: Final = Fraction(1, 1 << 1022)
PANEL: Final = 256


def unexplained(B: FloatMatrix) -> Fraction | None:
    """Return an upper bound of ‖B − LLᵀ‖₂ for a lower triangular L; None if there is no factor L.

    Hypotheses: B is symmetric, its entries are below 1 in magnitude.
    """
    n = len(B)
    L = lower_factor(B)
    if L is None or not largest_magnitude(L) <= 1.0:  # as the diagonal of B is below 1
        return None
    product, terms = _times_transpose(L)
    measured = norm(np.subtract(B, product, out=product))
    product_error = gamma(terms) * square_sum(L) + 4 * n**3 * ETA
    return measured + product_error + U * measured + 2 * n * ETA


def norm(array: FloatMatrix) -> Fraction:
    """An upper bound of the Frobenius norm."""
    return Fraction(sqrt_up(square_sum(array)))


def square_sum(array: FloatMatrix) -> Fraction:
    """An upper bound of Σ v² over all entries: (fl(Σv²) + 2Nη)/(1 − γ_N), in any order."""
    flat, size = array.ravel(order="K"), array.size
    return (Fraction(float(np.dot(flat, flat))) + 2 * size * ETA) / (1 - gamma(size))


def gamma(terms: int) -> Fraction:
    """γ_n = n·u/(1 − n·u); n is below 2^33 here."""
    return terms * U / (1 - terms * U)


def extent(matrix: FloatMatrix, axis: int) -> slice:
    """Return the range from the first to the last row or column that is not zero."""
    found = np.flatnonzero(matrix.any(axis=axis))
    return slice(int(found[0]), int(found[-1]) + 1) if found.size else slice(0, 0)


def _times_transpose(L: FloatMatrix) -> tuple[FloatMatrix, int]:
    """Return LLᵀ, and the largest number of terms of an entry.

    Columns that are 0 in a panel of rows, and rows in which all other columns are 0, add nothing.
    """
    product, terms = np.zeros_like(L), 0
    for start in range(0, len(L), PANEL):
        spend()
        stop = min(start + PANEL, len(L))
        first = extent(L[start:stop], 0).start
        last = start + extent(L[start:, first:stop], 1).stop
        terms = max(terms, stop - first)
        block = L[start:last, first:stop] @ L[start:stop, first:stop].T
        product[start:last, start:stop] = block
        product[start:stop, start:last] = block.T
    return product, terms
