"""Eigenvalues: estimates of spectral norms from below, to a few digits or almost all of them."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.core.norms.explicit import Strip

Array = npt.NDArray[np.float64]
Matrices = npt.NDArray[np.float64] | npt.NDArray[np.complex128] | npt.NDArray[np.complex64]

_DIRECT: Final = 320
"""Side of a Gram matrix up to which all eigenvalues are computed."""
_TINY: Final = 24
_LONG: Final = 3
"""Ratio of the sides from which it pays to form the Gram matrix."""
_SHORT: Final = 128
"""Side of matrices in a stack up to which it pays for the few products of a rough estimate."""
_RESIDUAL: Final = 1e-6
"""Tolerance for the residual of Ritz vectors; the value's error is of the order of its square."""
_FIRST_LOOK: Final = 12
_MOST_LANCZOS: Final = 600
_MOST_STEPS: Final = 96
_BETWEEN_LOOKS: Final = 6
_HOPE: Final = 2.0
"""The next steps may add this many times what the last ones added."""
_FEWER: Final = 0.75
"""If at most this share of a stack is still active, the rest is dropped."""


def spectral_norm(matrix: Matrices) -> float:
    """Return ‖W‖₂ to about ten digits, for numbers of any magnitude."""
    largest = float(np.abs(matrix).max(initial=0.0))
    if not 0.0 < largest < np.inf:
        return largest
    exponent = int(np.frexp(largest)[1])
    scaled = _over_power(matrix, exponent)
    side = min(scaled.shape)
    if side == 1:
        square = float(np.vdot(scaled, scaled).real)
    elif side <= _DIRECT:
        square = float(eigenvalues(_gram(scaled))[-1])
    else:
        square = _lanczos(scaled)
    with np.errstate(over="ignore"):
        return float(np.ldexp(np.sqrt(max(square, 0.0)), exponent))


def eigenvalues(matrix: Matrices) -> Array:
    """Return the eigenvalues of a Hermitian matrix, or of each of a stack, in ascending order.

    They are infinite if LAPACK finds none, as for numbers that overflowed.
    """
    try:
        found = np.linalg.eigvalsh(matrix)
    except np.linalg.LinAlgError:
        return np.full(matrix.shape[:-1], np.inf)
    return np.where(np.isfinite(found), found, np.inf).astype(np.float64, copy=False)


def strips_norm(strips: Sequence[Strip], columns: int) -> float:
    """Return the norm of the matrix of these strips, as accurately as `spectral_norm`."""
    largest = max((float(np.abs(strip.rows).max(initial=0.0)) for strip in strips), default=0.0)
    if not 0.0 < largest < np.inf:
        return largest
    exponent = int(np.frexp(largest)[1])
    parts = []
    for strip in strips:
        rows = _over_power(strip.rows, exponent)
        places = np.array(strip.starts)[:, None] + np.arange(rows.shape[1])
        parts.append((places, np.asarray(rows.T @ rows)))

    def gram(vector: Array) -> Array:
        images = [(places.ravel(), (vector[places] @ part).ravel()) for places, part in parts]
        joined, weights = (np.concatenate(each) for each in zip(*images, strict=True))
        return np.asarray(np.bincount(joined, weights, columns), dtype=np.float64)

    with np.errstate(over="ignore"):
        return float(np.ldexp(np.sqrt(largest_eigenvalue(gram, columns)), exponent))


def estimated_squares(stack: Matrices, accuracy: float, least: float | None = None) -> Array:
    """Return ‖Z‖₂² of every matrix of a stack [k, m, n] of moderate numbers, to this accuracy.

    least: if given, only values of at least this and near the largest one are that accurate.
    """
    tall: Any = stack if stack.shape[1] >= stack.shape[2] else stack.swapaxes(1, 2)
    _, length, side = tall.shape
    if side <= _TINY or (length >= _LONG * side and side <= _SHORT):
        return estimated_eigenvalues(tall.conj().swapaxes(1, 2) @ tall, accuracy, least)

    def image(tall: Any, vectors: Any) -> Any:
        through = (tall @ vectors[..., None])[..., 0]
        return (through.conj()[:, None] @ tall).conj()[:, 0]

    return _ritz_values(image, tall, accuracy, least)


def estimated_eigenvalues(grams: Matrices, accuracy: float, least: float | None = None) -> Array:
    """Return the largest eigenvalue of each positive semidefinite matrix of a stack [k, n, n].

    For the other arguments see `estimated_squares`.
    """
    if grams.shape[1] <= _TINY:
        return eigenvalues(grams)[:, -1]

    def image(grams: Any, vectors: Any) -> Any:
        return (grams @ vectors[..., None])[..., 0]

    return _ritz_values(image, grams, accuracy, least)


def _ritz_values(
    image: Callable[[Any, Any], Any], stack: Any, accuracy: float, least: float | None
) -> Array:
    """Return values from a Krylov space of each operator, which grows until they settle.

    Lanczos vectors are not stored, as in `largest_eigenvalue`. If the space is exhausted, the
    recurrence continues with the zero vector and the value 0.
    """
    count, side = len(stack), stack.shape[2]
    steps = min(side, _MOST_STEPS)
    start = np.random.default_rng(0).standard_normal(side)
    vector = np.tile((start / np.linalg.norm(start)).astype(stack.dtype), (count, 1))
    before, length = np.zeros_like(vector), np.zeros(count)
    tridiagonal = np.zeros((count, steps, steps))
    found, open_ = np.zeros(count), np.arange(count)
    for step in range(steps):
        new = image(stack, vector)
        diagonal = (vector.conj() * new).sum(axis=1).real
        tridiagonal[:, step, step] = diagonal
        if (step + 1) % _BETWEEN_LOOKS == 0 or step + 1 == steps:
            ritz = eigenvalues(tridiagonal[:, : step + 1, : step + 1])[:, -1]
            gains = ritz - found[open_]
            found[open_] = ritz
            going = gains > accuracy * ritz
            if least is not None:
                going &= ritz + _HOPE * gains >= max(least, float(found.max()))
            if not going.any() or step + 1 == steps:
                break
            if least is not None and going.mean() <= _FEWER:
                rows: Any = (stack, vector, new, before, length, diagonal, tridiagonal, open_)
                stack, vector, new, before, length, diagonal, tridiagonal, open_ = (
                    each[going] for each in rows
                )
        new -= diagonal[:, None] * vector
        new -= length[:, None] * before
        length = np.linalg.norm(new, axis=1)
        length[length <= 100.0 * np.finfo(new.dtype).eps * tridiagonal.max(axis=(1, 2))] = 0.0
        before, vector = vector, new / np.where(length > 0.0, length, np.inf)[:, None]
        tridiagonal[:, step, step + 1] = tridiagonal[:, step + 1, step] = length
    return found


def _over_power(matrix: Matrices, exponent: int) -> Matrices:
    """Return the matrix over 2^exponent, without a power that overflows float64."""
    half = exponent // 2
    scaled = matrix * 2.0**-half
    scaled *= 2.0 ** (half - exponent)
    return scaled


def _gram(matrix: Matrices) -> Matrices:
    """Return the smaller of W*W and WW*."""
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    return np.asarray(tall.conj().T @ tall)


def _lanczos(matrix: Matrices) -> float:
    """Return the largest eigenvalue of the smaller Gram matrix, which is formed if W is long."""
    tall: Any = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    if len(tall) >= _LONG * tall.shape[1]:
        gram: Any = _gram(tall)
        return largest_eigenvalue(lambda vector: gram @ vector, len(gram), tall.dtype)
    back = tall.conj().T
    return largest_eigenvalue(lambda vector: back @ (tall @ vector), len(back), tall.dtype)


def largest_eigenvalue(operator: Callable[[Any], Any], side: int, kind: Any = np.float64) -> float:
    """Return that of a positive semidefinite Hermitian operator, to about ten digits.

    Lanczos vectors are not stored, and lose their orthogonality to early ones: the largest Ritz
    value may appear again, which does not change it. The result is infinite if products overflow.
    """
    vector = np.random.default_rng(0).standard_normal(side).astype(kind)
    vector /= np.linalg.norm(vector)
    before, length, top = np.zeros_like(vector), 0.0, 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    look = _FIRST_LOOK
    for step in range(1, _MOST_LANCZOS + 1):
        image = operator(vector) - length * before
        diagonal.append(float(np.vdot(vector, image).real))
        image -= diagonal[-1] * vector
        length = float(np.linalg.norm(image))
        if not np.isfinite(diagonal[-1] + length):
            return np.inf
        if step in (look, _MOST_LANCZOS) or length <= _RESIDUAL * max(diagonal):
            look += look // 3
            ritz = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
            values, vectors = np.linalg.eigh(ritz)
            top = float(values[-1])
            if length * abs(float(vectors[-1, -1])) <= _RESIDUAL * top:
                break
        beside.append(length)
        before, vector = vector, image / length
    return top
