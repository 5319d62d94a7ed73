"""Cholesky factors with their residuals.

What enters: Hermitian float64 or complex128 matrices, by their lower triangles. What leaves: which
of them got a factor R, and how far M can be from R R*.

The factors may be wrong in any way. The proof rests on IEEE double arithmetic and on matrix
products in which every entry is a sum of products in some order (BLAS-3 GEMM, not Strassen, not
3M). Products of many small matrices are slowed down by BLAS threads; `OMP_NUM_THREADS=1` helps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import dtrsm, ztrsm

from lipcert.norms.scaling import UNDERFLOW
from lipcert.upper import INFINITE, FloatArray, Upper, gamma, root_sum_square, row_norms

BoolArray = npt.NDArray[np.bool_]
Matrix = npt.NDArray[np.float64 | np.complex128]

_DIRECT_SIZE: Final = 8  # up to here a batched routine beats a loop over matrices
_SMALLEST_BLOCK: Final = 64
_BLOCKS: Final = 16


def factor_stack(stack: Matrix, largest_residual: FloatArray) -> tuple[BoolArray, Upper]:
    """Returns (found, B) with B ≥ ‖M_i − R_i R_i*‖₂ for some R_i wherever found_i holds.

    stack: [n, c, c]; factors with a residual above largest_residual[i] do not count as found.
    Proof: `PanelNorms.distance` for the worst of the matrices.
    """
    found, factors = _cholesky_stack(stack)
    kept = stack[found]
    residuals = _norms(np.tril(kept - factors @ factors.conj().swapaxes(1, 2)))
    good = residuals <= largest_residual[found]
    found[found] = good
    parts = (residuals, _norms(factors), _norms(kept))
    norms = PanelNorms(*(Upper(float(np.max(part[good], initial=0.0))) for part in parts))
    return found, norms.distance(stack.shape[-1])


def factor_in_place(matrix: Matrix) -> Upper:
    """Returns B with B ≥ ‖M − R R*‖₂ for some R, which replaces M; inf where none was found.

    M is the Hermitian matrix that the lower triangle of `matrix` determines.
    Proof: `factor_panel` for the only panel of M.
    """
    entries = frobenius_norm(matrix)
    norms = factor_panel(matrix, entries)
    return INFINITE if norms is None else norms.distance(len(matrix))


def factor_panel(panel: Matrix, entries: Upper) -> PanelNorms | None:
    """The block column M_J of a Hermitian M becomes that of R, its first rows being R_JJ.

    panel: M_J − Σ_{K<J} R_K R_JK*, computed already: [rows, columns], the diagonal block first.
    entries: a bound of ‖M_J‖_F.
    For every narrower block column J, P = M_J − Σ_{K<J} R_K R_JK* is computed, R_J is found
    somehow, and ρ = P − R_J R_JJ* is computed. Elimination needs these products anyway.
    None where a diagonal block is not positive definite.
    """
    size = panel.shape[1]
    block = max(_SMALLEST_BLOCK, -(-size // _BLOCKS))
    residuals, factors = [], []
    for start in range(0, size, block):
        stop = min(start + block, size)
        width = stop - start
        before = panel[start:, :start]
        part = panel[start:, start:stop] - before @ before[:width].conj().T
        corner = _cholesky(part[:width])
        if corner is None:
            return None
        factor = _divided(part, corner)
        factors.append(_norms(factor[None]))
        part -= factor @ corner.conj().T
        part[:width] = np.tril(part[:width])
        residuals.append(_norms(part[None]))
        panel[start:, start:stop] = factor
    return PanelNorms(_joined(residuals), _joined(factors), entries)


@final
@dataclass(frozen=True, slots=True)
class PanelNorms:
    """Bounds of the Frobenius norms of block columns: of ρ, of R, and of M (or more of it).

    Only the lower triangle counts.
    """

    residual: Upper
    factor: Upper
    entries: Upper

    @classmethod
    def joined(cls, panels: Sequence[PanelNorms]) -> PanelNorms:
        """Those of the panels side by side."""
        return cls(
            root_sum_square(panel.residual for panel in panels),
            root_sum_square(panel.factor for panel in panels),
            root_sum_square(panel.entries for panel in panels),
        )

    def distance(self, terms: int) -> Upper:
        """Returns B with B ≥ ‖M − R R*‖₂, where an entry of R R* has at most `terms` products.

        Proof: an entry of ρ is M_ij − Σ r_ik r̄_jk, computed in some order: a sum of at most
        2·terms + 1 numbers in its real and in its imaginary part, hence off by at most
        γ_{2·terms + 4} times the sum of magnitudes, in the 2-norm by 2γ(‖R‖_F² + ‖M‖_F). The
        lower triangle of a Hermitian matrix carries at least half of its squared norm.
        """
        double = Upper(2.0)
        whole = double.sqrt() * self.entries
        rounding = double * gamma(2 * terms + 4) * (self.factor * self.factor + whole)
        return double.sqrt() * self.residual + rounding + UNDERFLOW


def frobenius_norm(matrix: Matrix) -> Upper:
    """Upper bound of the Frobenius norm; inf where something is NaN."""
    return Upper(float(_norms(matrix[None])[0]))


def _joined(panels: Sequence[FloatArray]) -> Upper:
    """The norm of panels side by side."""
    norms = np.concatenate(panels)
    return Upper(float(row_norms(norms[None])[0])) if np.all(np.isfinite(norms)) else INFINITE


def _norms(stack: Matrix) -> FloatArray:
    """Upper bounds of the Frobenius norms of matrices; inf where something is NaN."""
    rows = np.ascontiguousarray(stack).reshape(len(stack), math.prod(stack.shape[1:]))
    norms = row_norms(rows.view(np.float64))
    norms[np.isnan(norms)] = math.inf
    return norms


def _cholesky_stack(stack: Matrix) -> tuple[BoolArray, Matrix]:
    """Which matrices have a numerical Cholesky factor, and the factors of those."""
    found = np.ones(len(stack), dtype=np.bool_)
    if stack.shape[-1] <= _DIRECT_SIZE:
        found = np.linalg.eigvalsh(stack)[:, 0] > 0.0
        try:
            return found, np.asarray(np.linalg.cholesky(stack[found]), dtype=stack.dtype)
        except np.linalg.LinAlgError:
            found[:] = True
    factors = [_cholesky(matrix) for matrix in stack]
    found[:] = [factor is not None for factor in factors]
    some = [factor for factor in factors if factor is not None]
    return found, np.array(some, dtype=stack.dtype).reshape(-1, *stack.shape[1:])


def _cholesky(matrix: Matrix) -> Matrix | None:
    try:
        return np.asarray(np.linalg.cholesky(matrix), dtype=matrix.dtype)
    except np.linalg.LinAlgError:
        return None


def _divided(panel: Matrix, corner: Matrix) -> Matrix:
    """The panel times the inverse of corner*; its first rows are the corner itself."""
    width = len(corner)
    factor = panel.copy()
    factor[:width] = corner
    if len(panel) > width:
        solve = ztrsm if np.iscomplexobj(panel) else dtrsm
        factor[width:] = solve(1.0, corner.conj(), panel[width:].T, lower=1).T
    return factor
