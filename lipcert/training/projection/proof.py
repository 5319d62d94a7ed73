"""Proofs that Gram matrices are below a shift, in floating point.

What enters: computed Gram matrices, real or complex, and for each a shift q > 0. What leaves: which
of them are proved, and the relative slack that every rounding together is worth.

The proof supposes IEEE double arithmetic, and matrix products in which every entry is a sum of
products in some order (BLAS-3 GEMM and SYRK, LAPACK's LAUUM; not Strassen, not 3M). How a Cholesky
factor was found does not matter: only its residual counts. Gram matrices may be symmetric up to
rounding only: either triangle obeys the bounds, and one of them is enough.
Eigenvalues are estimated besides, to choose shifts: nothing of these estimates is trusted.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dlauum, dpotrf

from lipcert.upper import UNIT_ROUNDOFF, FloatArray, gamma

BoolArray = npt.NDArray[np.bool_]
Matrix = npt.NDArray[np.float64 | np.complex128]

_DIRECT_SIZE: Final = 32  # up to here a full eigenvalue routine beats Lanczos
_RESIDUAL: Final = 2.0**-36
_TOO_LARGE: Final = 0.25
_ALONE: Final = 32  # a side from which no matrix gains from being treated with others
_FEW: Final = 2  # so many never do


def estimate_largest(matrices: Matrix, accuracy: float) -> FloatArray:
    """An untrusted estimate, from below, of the largest eigenvalue of each matrix: [n]."""
    if matrices.shape[-1] <= _DIRECT_SIZE:
        return np.asarray(np.linalg.eigvalsh(matrices)[:, -1], dtype=np.float64)
    return _lanczos(matrices, accuracy)


def _lanczos(matrices: Matrix, accuracy: float) -> FloatArray:
    """Ritz values of a Krylov space that grows until the largest one settles.

    Where the space is exhausted, the recurrence goes on with the zero vector and the value 0.
    """
    count, size, _ = matrices.shape
    generator = np.random.default_rng(0)
    vector = np.broadcast_to(generator.standard_normal(size), (count, size)).astype(matrices.dtype)
    vector = vector / np.linalg.norm(vector, axis=1, keepdims=True)
    basis = np.empty((count, 0, size), dtype=matrices.dtype)
    diagonal: list[FloatArray] = []
    off_diagonal: list[FloatArray] = []
    previous = np.zeros(count)
    for step in range(1, min(size, 300) + 1):
        basis = np.concatenate((basis, vector[:, None]), axis=1)
        image = (matrices @ vector[..., None])[..., 0]
        diagonal.append(np.sum(vector.conj() * image, axis=1).real)
        for _ in range(2):
            overlaps = basis.conj() @ image[..., None]
            image = image - (basis.swapaxes(1, 2) @ overlaps)[..., 0]
        length = np.linalg.norm(image, axis=1)
        length[length <= 1e-8 * np.max(diagonal, axis=0)] = 0.0
        if step % 6 == 0 or step == size:
            ritz = _largest_of_tridiagonal(diagonal, off_diagonal)
            if np.all(ritz - previous <= accuracy * ritz):
                return ritz
            previous = ritz
        off_diagonal.append(length)
        lengths = np.where(length > 0.0, length, np.inf)
        vector = image / lengths[:, None]
    return _largest_of_tridiagonal(diagonal, off_diagonal[:-1])


def _largest_of_tridiagonal(
    diagonal: list[FloatArray], off_diagonal: list[FloatArray]
) -> FloatArray:
    steps = len(diagonal)
    matrix = np.zeros((len(diagonal[0]), steps, steps))
    inner = np.arange(steps)
    matrix[:, inner, inner] = np.stack(diagonal, axis=1)
    if steps > 1:
        matrix[:, inner[1:], inner[:-1]] = np.stack(off_diagonal[: steps - 1], axis=1)
    return np.asarray(np.linalg.eigvalsh(matrix)[:, -1], dtype=np.float64)


def product_margin(side: int, longer: int) -> float:
    """Returns ε such that ‖M‖ ≤ (1 + ε)√q wherever `below` holds for the computed M M* and q.

    M: [side, longer] = [d, m], taken as exact; d·m below 2^40.
    Hypotheses: M M* is computed as real products of m terms each, of which at most two are added,
    in any order; q ≥ 2^-400, so that underflows, at most 2^-1022 each, are less than the spare
    2^-53·q.
    Proof: the computed G has |G − M M*| ≤ 2γ_{m+2}|M||M|ᵀ summed up, ‖G − M M*‖ ≤ 2γ_{m+2}d‖M‖².
    Either ‖G‖_F ≤ q up to the rounding γ_{2d²+4} of a norm; or there is an R for which the
    residual Ê of A = fl(qI − G) against RR*, computed, has a norm of at most τq. It is off by at
    most 2γ_{d+4}(‖A‖_F + ‖R‖_F²); the diagonal of Ê gives ‖R‖_F² ≤ 1.2dq, because A_ii ≤ q(1+u),
    and then ‖A‖_F ≤ 1.3dq. The diagonal of A is rounded by at most uq(1 + 2^-10). So for unit x,
    x*(qI − G)x ≥ x*RR*x − (1.01τ + 5γ_{d+4}d + 2u)q, that is
    ‖M‖²(1 − 2γ_{m+2}d) ≤ q(1 + 1.01τ + 5γ_{d+4}d + 2u), and (1 + a)/(1 − b) ≤ (1 + a + b)²
    for a, b ≤ 1/4.
    Attained: never; it is 2e-11 for matrices of moderate size.
    Reference: Rump 2006, Verification of positive definiteness, with a residual in place of an
    error analysis of the factorisation.
    """
    inner = gamma(side + 4).value * 5.0 * side + gamma(2 * side * side + 4).value
    margin = 1.01 * _RESIDUAL + inner + gamma(longer + 2).value * 2.0 * side + 8.0 * UNIT_ROUNDOFF
    if margin > _TOO_LARGE:
        raise ValueError(f"matrices of {side} by {longer} are too large for a proof in float64")
    return margin


def below(grams: Matrix, shifts: FloatArray) -> BoolArray:
    """For which of the matrices [n, d, d] λ_max ≤ shift is proved, in the sense above: [n].

    Symbols are far below their peak at most frequencies, where their Frobenius norms suffice;
    single matrices hardly ever are.
    """
    side = grams.shape[-1]
    if side > 1 and not np.iscomplexobj(grams):
        if side < _ALONE and len(grams) > _FEW:
            return _factored(grams, shifts)
        return np.array([_is_below(*pair) for pair in zip(grams, shifts, strict=True)])
    proved: BoolArray = frobenius_norms(grams) <= shifts
    left = np.flatnonzero(~proved)
    if left.size:
        proved[left] = _factored(grams[left], shifts[left])
    return proved


def frobenius_norms(stack: Matrix) -> FloatArray:
    """Computed norms of the matrices [n, d, d]: [n]."""
    rows = stack.reshape(len(stack), -1).view(np.float64)
    norms: FloatArray = np.sqrt(rows[:, None] @ rows[:, :, None])[:, 0, 0]
    return norms


def _is_below(gram: FloatArray, shift: float) -> bool:
    """`_factored` for one real matrix, on one of its triangles.

    With rows and columns in reverse order, A = shift·I − G has a lower factor; in order again, that
    is an upper U with A = U Uᵀ, and to compute U Uᵀ takes a third of the work of a product that
    knows nothing of zeros. The other triangles hold A itself throughout, where the residual is then
    0; whatever they hold, the residual on one triangle is at least 1/√2 of the whole.
    """
    shifted = np.negative(gram)
    shifted.reshape(-1)[:: len(gram) + 1] += shift
    upper = _upper_factor(shifted)
    if upper is None:
        return False
    product, _ = dlauum(upper.T, lower=0, overwrite_c=1)
    residual = np.subtract(shifted, product.T, out=shifted).reshape(-1)
    return math.sqrt(np.dot(residual, residual)) <= 0.5 * _RESIDUAL * shift


def _upper_factor(matrix: FloatArray) -> FloatArray | None:
    """U of A = U Uᵀ, transposed, in the lower triangle of a copy of A; None where there is none."""
    reverse = np.ascontiguousarray(matrix[::-1, ::-1])
    factor, info = dpotrf(reverse.T, lower=1, clean=0, overwrite_a=1)
    return np.ascontiguousarray(factor.T[::-1, ::-1]) if info == 0 else None


def _factored(grams: Matrix, shifts: FloatArray) -> BoolArray:
    """Whether shift·I − G has a numerical Cholesky factor with a small residual: [n]."""
    side = grams.shape[-1]
    shifted = np.negative(grams)
    shifted.reshape(len(grams), -1)[:, :: side + 1] += shifts[:, None]
    factors = _cholesky(shifted)
    small: BoolArray = frobenius_norms(_residuals(shifted, factors)) <= _RESIDUAL * shifts
    return small


def _cholesky(stack: Matrix) -> Matrix:
    """Lower factors; 0 for matrices that have none."""
    try:
        return np.asarray(np.linalg.cholesky(stack), dtype=stack.dtype)
    except np.linalg.LinAlgError:
        if len(stack) == 1:
            return np.zeros_like(stack)
    return np.concatenate([_cholesky(matrix[None]) for matrix in stack])


def _residuals(stack: Matrix, factors: Matrix) -> Matrix:
    """A − R R*."""
    if not np.iscomplexobj(factors):
        return np.asarray(stack - factors @ factors.swapaxes(1, 2), dtype=stack.dtype)
    real, imaginary = np.ascontiguousarray(factors.real), np.ascontiguousarray(factors.imag)
    real_t = real.swapaxes(1, 2)
    mixed = imaginary @ real_t
    result = stack.copy()
    result.real -= real @ real_t + imaginary @ imaginary.swapaxes(1, 2)
    result.imag -= mixed - mixed.swapaxes(1, 2)
    return result
