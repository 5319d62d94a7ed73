"""Largest eigenvalues of Hermitian matrices: untrusted estimates, and proofs of upper bounds.

What enters: stacks [n, c, c] of real symmetric or complex Hermitian float64 matrices with moderate
entries (see `scaling.py`). What leaves: either an estimate that may be wrong in any way, or a
bound whose proof uses only this of the machine: IEEE double arithmetic, and matrix products in
which every entry is a sum of products in some order (BLAS-3 GEMM, not Strassen, not 3M).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.norms.scaling import UNDERFLOW
from lipcert.upper import ONE, UNIT_ROUNDOFF, FloatArray, Upper, gamma, row_norms

__all__ = ["BoolArray", "HermitianStack", "estimate_largest", "largest_eigenvalue", "prove_below"]

BoolArray = npt.NDArray[np.bool_]
HermitianStack = npt.NDArray[np.float64 | np.complex128]

_DIRECT_SIZE: Final = 32  # up to here a full eigenvalue routine beats Lanczos
_BLOCK: Final = 128  # rows per block of a triangular product
_SLACKS: Final = tuple(2.0**-power for power in (23, 20, 16, 12, 8, 4))


def estimate_largest(matrices: HermitianStack, accuracy: float) -> FloatArray:
    """An untrusted estimate, from below, of the largest eigenvalue of each matrix: [n]."""
    if matrices.shape[-1] <= _DIRECT_SIZE:
        return np.asarray(np.linalg.eigvalsh(matrices)[:, -1], dtype=np.float64)
    return _lanczos(matrices, accuracy)


def prove_below(matrices: HermitianStack, shifts: FloatArray) -> tuple[BoolArray, Upper]:
    """Returns (proved, excess): λ_max(A_i) ≤ shift_i + excess wherever proved_i holds.

    A_i stands for the Hermitian matrix that the lower triangle of matrices[i] determines.
    Proof: let B = fl(shift·I − A); only its diagonal is rounded, by at most u·|B_jj|. For any
    lower triangular R whatsoever, B = R R* + (B − R R*), hence λ_min(B) ≥ −‖B − R R*‖_F. The
    product is computed with an error of at most 2γ_2c ‖R‖_F² in the 2-norm (its real and its
    imaginary parts are sums of 2c products each), the difference with a relative error u. The
    lower triangle of the Hermitian residual carries at least half of its squared norm.
    A Cholesky factor R makes the residual tiny, but nothing depends on how R was found.
    """
    size = matrices.shape[-1]
    diagonal = np.arange(size)
    shifted = -matrices
    shifted[:, diagonal, diagonal] += shifts[:, None]
    proved, factors = _cholesky(shifted)
    if not np.any(proved):
        return proved, UNDERFLOW
    kept = shifted[proved]
    residual = row_norms(_real_rows(np.tril(kept - _times_adjoint(factors))))
    small = residual <= 1e-9 * shifts[proved]
    proved[proved] = small
    mass = Upper(float(np.max(row_norms(_real_rows(factors[small])), initial=0.0)))
    largest = Upper(float(np.max(np.abs(kept[:, diagonal, diagonal]), initial=0.0)))
    left = Upper(float(np.max(residual[small], initial=0.0)))
    excess = (
        Upper(2.0).sqrt() * (ONE + Upper(UNIT_ROUNDOFF)) * left
        + Upper(2.0) * gamma(2 * size) * mass * mass
        + Upper(UNIT_ROUNDOFF) * largest
        + UNDERFLOW
    )
    return proved, excess


def largest_eigenvalue(matrices: FloatArray) -> Upper:
    """Returns B with B ≥ λ_max of each of the real positive semidefinite matrices [n, c, c].

    Proof: `prove_below` at a shift slightly above an estimate, and farther above while it fails;
    the largest trace is the last resort.
    Attained: within 2^-23 relative, where the estimate is good.
    """
    estimate = float(np.max(estimate_largest(matrices, 1e-10)))
    for slack in _SLACKS:
        shift = estimate * (1.0 + slack)
        proved, excess = prove_below(matrices, np.full(len(matrices), shift))
        if np.all(proved):
            return Upper(shift) + excess
    roots = np.sqrt(np.abs(np.diagonal(matrices, axis1=1, axis2=2)))
    trace = Upper(float(np.max(row_norms(np.ascontiguousarray(roots)))))
    return trace * trace * (ONE + Upper(8.0 * UNIT_ROUNDOFF)) + UNDERFLOW


def _real_rows(stack: HermitianStack) -> FloatArray:
    """Each matrix as one row of real numbers."""
    return np.ascontiguousarray(stack).reshape(len(stack), -1).view(np.float64)


def _cholesky(stack: HermitianStack) -> tuple[BoolArray, HermitianStack]:
    """Which matrices have a numerical Cholesky factor, and the factors of those."""
    found = np.ones(len(stack), dtype=np.bool_)
    if stack.shape[-1] <= _DIRECT_SIZE // 4:
        found = np.linalg.eigvalsh(stack)[:, 0] > 0.0
        try:
            return found, np.asarray(np.linalg.cholesky(stack[found]), dtype=stack.dtype)
        except np.linalg.LinAlgError:
            found[:] = True
    factors = []
    for position, matrix in enumerate(stack):
        try:
            factors.append(np.linalg.cholesky(matrix))
        except np.linalg.LinAlgError:
            found[position] = False
    return found, np.array(factors, dtype=stack.dtype).reshape(-1, *stack.shape[1:])


def _times_adjoint(factors: HermitianStack) -> HermitianStack:
    """R R* in the lower triangle, skipping blocks that are zero by triangularity."""
    product = np.zeros_like(factors)
    for start in range(0, factors.shape[-1], _BLOCK):
        stop = start + _BLOCK
        corner = factors[:, :stop, :stop]
        product[:, start:stop, :stop] = factors[:, start:stop, :stop] @ corner.conj().swapaxes(1, 2)
    return product


def _lanczos(matrices: HermitianStack, accuracy: float) -> FloatArray:
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
