"""Largest eigenvalues of Hermitian matrices: untrusted estimates, and proofs of upper bounds.

What enters: stacks [n, c, c] of real symmetric or complex Hermitian float64 matrices with moderate
entries (see `scaling.py`). What leaves: either an estimate that may be wrong in any way, or a
bound whose proof uses only this of the machine: IEEE double arithmetic, and matrix products in
which every entry is a sum of products in some order (BLAS-3 GEMM, not Strassen, not 3M).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lipcert.norms.factor import BoolArray, Matrix, factor_in_place, factor_stack
from lipcert.norms.scaling import UNDERFLOW
from lipcert.upper import ONE, UNIT_ROUNDOFF, ZERO, FloatArray, Upper, row_norms

_DIRECT_SIZE: Final = 32  # up to here a full eigenvalue routine beats Lanczos
_TOO_LARGE: Final = 1e-7  # a factor with a larger relative residual is useless
_LARGEST_STACKED: Final = 96
_SLACKS: Final = tuple(2.0**-power for power in (23, 20, 16, 12, 8, 4))


def estimate_largest(matrices: Matrix, accuracy: float) -> FloatArray:
    """An untrusted estimate, from below, of the largest eigenvalue of each matrix: [n]."""
    if matrices.shape[-1] <= _DIRECT_SIZE:
        return np.asarray(np.linalg.eigvalsh(matrices)[:, -1], dtype=np.float64)
    return _lanczos(matrices, accuracy)


def prove_below(matrices: Matrix, shifts: FloatArray) -> tuple[BoolArray, Upper]:
    """Returns (proved, excess): λ_max(A_i) ≤ shift_i + excess wherever proved_i holds.

    A_i stands for the Hermitian matrix that the lower triangle of matrices[i] determines.
    Proof: let B = fl(shift·I − A); only its diagonal is rounded, by at most u·|B_jj|. For any
    matrix R whatsoever, B = R R* + (B − R R*), hence λ_min(B) ≥ −‖B − R R*‖, which the functions
    of `factor.py` bound.
    """
    size = matrices.shape[-1]
    step = max(1, len(matrices)) if size <= _LARGEST_STACKED else 1
    masks, worst = [np.zeros(0, dtype=np.bool_)], ZERO
    for start in range(0, len(matrices), step):
        part = slice(start, start + step)
        proved, excess = _prove_part(matrices[part], shifts[part])
        masks.append(proved)
        worst = max(worst, excess)
    return np.concatenate(masks), worst


def _prove_part(matrices: Matrix, shifts: FloatArray) -> tuple[BoolArray, Upper]:
    """`prove_below` for a stack of small matrices, or for one matrix of any size."""
    diagonal = np.arange(matrices.shape[-1])
    shifted = -matrices
    shifted[:, diagonal, diagonal] += shifts[:, None]
    largest = Upper(float(np.max(np.abs(shifted[:, diagonal, diagonal]), initial=0.0)))
    if len(diagonal) <= _LARGEST_STACKED:
        proved, distance = factor_stack(shifted, _TOO_LARGE * shifts)
    else:
        distance = factor_in_place(shifted[0])
        proved = np.array([distance.value <= _TOO_LARGE * shifts[0]])
    if not np.any(proved):
        return proved, ZERO
    return proved, distance + Upper(UNIT_ROUNDOFF) * largest


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
