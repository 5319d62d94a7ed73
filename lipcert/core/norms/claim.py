"""Claims ‖W‖₂ ≤ c: what names a proof of one, those of steps of a program, and one of a matrix
brought to a common scale; and claims λ_min(M) ≥ c.

Of a matrix at a scale, input: a matrix of float64 numbers taken as exact, and a finite claim c ≥ 0.
Output: the decision, where that takes no proof, or the matrix, transposed if that makes its Gram
matrix smaller, with c = fraction·2^exponent and 1/2 ≤ fraction < 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lipcert.core.arithmetic import multiply_up, round_down, round_up
from lipcert.core.budget import spend
from lipcert.core.interval import Interval, down, largest_magnitude, norm_up
from lipcert.core.line import NotProved
from lipcert.core.program import Dense, Shape

FloatMatrix: TypeAlias = npt.NDArray[np.float64]

MAX_SHORT_SIDE: Final = 8192
"""rows and columns of a Gram matrix, half a gigabyte; several are held at once"""
MAX_LONG_SIDE: Final = 1 << 20
"""terms of an inner product, so that the integers of `integer_engine` stay below 2^63"""
MAX_SIZE: Final = 1 << 12
"""rows of a matrix M"""


@dataclass(frozen=True, slots=True, eq=False)
class NormClaim:
    """A tall matrix (rows ≥ columns) and the claimed bound of its spectral norm."""

    matrix: FloatMatrix
    fraction: float
    exponent: int

    @classmethod
    def of(cls, matrix: FloatMatrix, claim: float) -> NormClaim | bool:
        """The claim to be proved, or whether it holds where that is plain.

        Proof: ‖W‖₂ ≥ max|w_ij|, so a smaller claim is false, and a claim of 0 that is not
        smaller means W = 0. A transpose has the same norm. NotProved where nothing can be said:
        numbers that are not finite, a negative claim, a matrix beyond the limits.
        """
        if matrix.ndim != 2 or matrix.dtype != np.float64:
            raise NotProved("a norm is checked of a float64 matrix")
        if not (math.isfinite(claim) and claim >= 0.0):
            raise NotProved(f"{claim!r} is not a bound")
        if min(matrix.shape) > MAX_SHORT_SIDE or max(matrix.shape) > MAX_LONG_SIDE:
            raise NotProved(f"a matrix of shape {matrix.shape} is beyond this check")
        if not np.isfinite(matrix).all():
            raise NotProved("the norm of a matrix with NaN or infinite entries is not defined")
        largest = largest_magnitude(matrix)
        if largest == 0.0 or claim < largest:
            return largest == 0.0
        tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
        return cls(tall, *math.frexp(claim))


NormCheck: TypeAlias = Callable[[FloatMatrix, float], bool]
"""whether ‖W‖₂ ≤ c could be proved of a matrix"""


@dataclass(frozen=True, slots=True)
class NormWitness:
    """How a norm is proved: "dense" of a matrix; "windows", "absolute", "explicit" or "torus".

    twists, counts: of `torus_at_most`.
    """

    method: str
    twists: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


Definite: TypeAlias = Callable[[FloatMatrix, Fraction], bool]
"""whether λ_min(M) ≥ c could be proved: every x has xᵀMx ≥ c‖x‖². False says nothing"""


def room_for(size: int) -> Fraction:
    """Return how far above c the lowest eigenvalue should be for a proof to succeed."""
    return Fraction(size, 1 << 41)


def shift_of(matrix: FloatMatrix, least: Fraction) -> float | None:
    """s; None unless 0 ≤ s < 1 and the matrix is symmetric, of entries below 1, not too large.

    Proof of λ_min(M) ≥ c by one Cholesky factor in either arithmetic. Let s = c + n·2^-42. If
    M − sI = LLᵀ + E, then λ_min(M) ≥ s − ‖E‖₂, which is at least c where ‖E‖₂ ≤ n·2^-42; both
    engines measure E for their factors. In float64 the diagonal of M − sI is rounded, by at most u,
    since |m_ii| < 1 and s < 1. In integers, entries are rounded to 2^-64, which changes M by at
    most n·2^-64 in the norm, and s is rounded up.
    To be expected where λ_min(M) ≥ c + n·2^-41, for n ≤ 4096 and diagonals below ½.
    """
    spend()
    if len(matrix) > MAX_SIZE or not largest_magnitude(matrix) < 1.0 or (matrix != matrix.T).any():
        return None
    shift = round_up(least + room_for(len(matrix)) / 2)
    return shift if 0.0 <= shift < 1.0 else None


def lowered(matrix: FloatMatrix, error: FloatMatrix) -> tuple[FloatMatrix, FloatMatrix]:
    """SMS − diag(t) ≤ S(M + E)S for all |E| ≤ `error`, both symmetric, and the diagonal S: powers
    of two for which SMS has a diagonal between 1/8 and 1/2, where M has not 0.

    Proof: with e = S|E|S, yᵀSESy ≥ −Σ e_ij|y_i y_j| ≥ −Σ_i y_i² Σ_j e_ij·w_i/w_j for any w > 0, as
    2|y_i y_j| ≤ y_i²·w_i/w_j + y_j²·w_j/w_i. These w are the sizes of the rows before what cancels
    in them, in the scale of the rest: what errs with a row is taken from it. A quotient that is too
    small for a number is one that is too large the other way round.
    """
    scale = np.ldexp(1.0, np.minimum(-1 - np.frexp(matrix.diagonal())[1] // 2, 500))
    sizes = np.maximum(matrix.diagonal(), 2.0**40 * error.diagonal()) + 2.0**-1000
    weights = np.sqrt(sizes) * scale
    scaled, off = (part * scale[:, None] * scale for part in (matrix, error))
    less = np.sum(off * (weights[:, None] / weights), axis=1) * (1.0 + 2.0**-20)
    np.fill_diagonal(scaled, down(scaled.diagonal() - less))
    return scaled, scale


def is_semidefinite(matrix: FloatMatrix, error: FloatMatrix, proof: Definite) -> bool:
    """Whether every symmetric matrix this near, entry by entry, is proved positive semidefinite.

    Proof: M is where SMS is, for a diagonal S; for powers of two that is exact but for what
    underflows, below 2^-1022 an entry and step.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return proof(lowered(matrix, error)[0], Fraction(len(matrix), 1 << 500))


def all_at_most(entries: Interval, stretch: float, claim: float, check: NormCheck) -> bool:
    """Whether ‖A_K‖₂ ≤ claim for every K in `entries`, where A is linear in K.

    stretch: ‖A_D‖₂ ≤ stretch·‖D‖_F for every D. check: of ‖A_M‖₂, by the entries of M.
    Proof: ‖A_K‖ ≤ ‖A_M‖ + ‖A_(K−M)‖ for the middle M.
    """
    if not (math.isfinite(claim) and np.isfinite(entries.magnitude()).all()):
        return False
    middle, radius = entries.ball()
    error = multiply_up(stretch, norm_up(radius))
    rest = round_down(Fraction(claim) - Fraction(error)) if error < claim or not error else -1.0
    return rest >= 0.0 and check(middle, rest)


def matrix_of(op: Dense, shape_in: Shape, shape_out: Shape) -> Interval:
    """Return the entries of a matrix that acts on the last axis; NotProved if it does not fit."""
    if (shape_out[-1], shape_in[-1]) != op.weight.shape or shape_in[:-1] != shape_out[:-1]:
        raise NotProved("a matrix does not fit the shapes of its step")
    return Interval(op.weight.lo, op.weight.hi)
