"""Largest eigenvalues of many Hermitian matrices, estimated: nothing here is trusted.

What enters: stacks [n, c, c] of real symmetric or complex Hermitian float64 matrices.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lipcert.upper import FloatArray

BoolArray = npt.NDArray[np.bool_]
Matrix = npt.NDArray[np.float64 | np.complex128]

_DIRECT_SIZE: Final = 32  # up to here a full eigenvalue routine beats Lanczos


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
