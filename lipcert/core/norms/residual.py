"""B = LLᵀ + E in float64: a triangular factor from anywhere, and how large E is at most.

Hypotheses. Additions and multiplications round to nearest in binary64, and the matrix product is
the conventional one: each entry is a sum of the products in some order, perhaps with fused
multiply-add (not Strassen's). Gradual underflow is not assumed; η = 2^-1022 covers what is lost.

Proof. With M = fl(LLᵀ) and D = fl(B − M): ‖M − LLᵀ‖_F ≤ γ_n ‖L‖_F² + 4n³η, because
|M − LLᵀ| ≤ γ_n |L||L|ᵀ + 4nη entrywise, and no entry needs a sum of more terms than L has columns
in the panels that reach its row: that number serves in γ. Each subtraction errs by at most u times
its result, or η. Of B, which is symmetric, and LLᵀ, columns from the diagonal on are compared: in
norms, what is below counts twice. Where a panel ends, B and LLᵀ are 0.

Factors are proposed in float64, and nothing of them is trusted. A panel of columns ends with its
last row that is not 0, because matrices of chains and of convolutions are mostly zero; M is what
the factor's next panel is computed from.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import numpy as np

from lipcert.core.arithmetic import sqrt_up
from lipcert.core.budget import spend
from lipcert.core.interval import largest_magnitude
from lipcert.core.norms.claim import FloatMatrix

PANEL: Final = 128
"""columns of a panel of a factor"""


def lower_factor(B: FloatMatrix, columns: int | None = None) -> FloatMatrix | None:
    """Return L with L Lᵀ ≈ B, or its first columns; None if B is not positive definite there."""
    try:
        if columns is None and np.count_nonzero(B) > B.size // 2:
            return np.asarray(np.linalg.cholesky(B), dtype=np.float64)
        L = np.zeros((len(B), len(B) if columns is None else columns))
        for start, _, panel, _ in _panels(B, L.shape[1]):
            L[start : start + len(panel), start : start + panel.shape[1]] = panel
    except np.linalg.LinAlgError:
        return None
    return L


def _panels(B: FloatMatrix, stop_at: int) -> Iterator[tuple[int, int, FloatMatrix, FloatMatrix]]:
    """Yield a lower triangular L by panels of columns, from the diagonal to the last row but zeros.

    LinAlgError if B is not positive definite. Of each: its first column, the first column of those
    before it that reach its rows, the panel, and these columns of LLᵀ but for the panel's own part.
    """
    before: list[tuple[int, FloatMatrix]] = []
    for start in range(0, stop_at, PANEL):
        spend()
        width = min(PANEL, stop_at - start)
        before = [(edge, panel) for edge, panel in before if edge + len(panel) > start]
        filled = np.flatnonzero(B[start:, start : start + width].any(axis=1))
        height = max([width, *filled[-1:] + 1, *(edge + len(own) - start for edge, own in before)])
        product = np.zeros((height, width))
        for edge, panel in before:
            rows = panel[start - edge :]
            product[: len(rows), : len(rows[:width])] += rows @ rows[:width].T
        rest = B[start : start + height, start : start + width] - product
        own = np.asarray(np.linalg.cholesky(rest[:width]), dtype=np.float64)
        if height > width:
            own = np.concatenate((own, np.linalg.solve(own, rest[width:].T).T))
        before.append((start, own))
        yield start, before[0][0], own, product


U: Final = Fraction(1, 1 << 53)
ETA: Final = Fraction(1, 1 << 1022)


def unexplained(B: FloatMatrix) -> Fraction | None:
    """Return an upper bound of ‖B − LLᵀ‖₂ for a lower triangular L; None if there is no factor L.

    Hypotheses: B is symmetric, its entries are below 1 in magnitude.
    """
    n, terms = len(B), 0
    factor: list[FloatMatrix] = []
    rests: list[FloatMatrix] = []
    try:
        for start, first, panel, product in _panels(B, n):
            if not largest_magnitude(panel) <= 1.0:  # as the diagonal of B is below 1
                return None
            stop, width = start + len(panel), panel.shape[1]
            rest = B[start:stop, start : start + width] - (product + panel @ panel[:width].T)
            factor.append(panel)
            rests += [rest[:width], rest[width:], rest[width:]]  # B is symmetric
            terms = max(terms, start + width - first)
    except np.linalg.LinAlgError:
        return None
    measured = norm(*rests)
    product_error = gamma(terms) * square_sum(*factor) + 4 * n**3 * ETA
    return measured + product_error + U * measured + 2 * n * ETA


def norm(*arrays: FloatMatrix) -> Fraction:
    """An upper bound of the Frobenius norm of all entries."""
    return Fraction(sqrt_up(square_sum(*arrays)))


def square_sum(*arrays: FloatMatrix) -> Fraction:
    """An upper bound of Σ v² over all entries: (Σ_arrays fl(Σv²) + 2Nη)/(1 − γ_N)."""
    size = sum(array.size for array in arrays)
    flat = (array.ravel(order="K") for array in arrays)
    total = sum((Fraction(float(np.dot(each, each))) for each in flat), 2 * size * ETA)
    return total / (1 - gamma(size))


def gamma(terms: int) -> Fraction:
    """γ_n = n·u/(1 − n·u); n is below 2^33 here."""
    return terms * U / (1 - terms * U)
