"""Completed squares, certified: what a linear solve yields when its result is not trusted.

What enters: a symmetric matrix Q below κI. What leaves: solutions with (κI − Q), a bound of their
residual, and from these the largest value of a concave quadratic function, rounded up.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lipcert.interval import Interval
from lipcert.norms.scaling import UNDERFLOW
from lipcert.upper import UNIT_ROUNDOFF, FloatArray, Lower, Upper, gamma, norm

_LEAST_GAP: Final = 2.0**-40


def completed(
    form: FloatArray, weights: FloatArray, limit: Upper, gap: Lower
) -> tuple[FloatArray, Upper]:
    """(G, error) with Q + QP(κI − PQP)⁻¹PQ ≤ G + error·I, where κI − PQP ≥ gap·I > 0.

    Proof: with A = κI − PQP, B = PQ, any Y and E = B − AY, BᵀA⁻¹B = YᵀB + EᵀY + EᵀA⁻¹E is at
    most the symmetric part of YᵀB plus ‖E‖‖Y‖ + ‖E‖²/gap. B is rounded, and so is the sum, by at
    most γ_{n+4}(‖Y‖‖B‖ + ‖Q‖) in all.
    """
    cross = weights[:, None] * form
    solution, residual = solved(np.outer(weights, weights) * form, limit, cross)
    reach, size = norm(solution), norm(cross)
    residual = residual + Upper(UNIT_ROUNDOFF) * size
    error = residual * reach + (residual * residual).over(gap)
    error = error + gamma(len(form) + 4) * (reach * size + norm(form)) + UNDERFLOW
    return form + symmetric(solution.T @ cross), error


def solved(form: FloatArray, limit: Upper, right: FloatArray) -> tuple[FloatArray, Upper]:
    """(Y, B) with B ≥ ‖right − (κI − form)Y‖_F, also if the entries of form err by 3u.

    Proof: forming κI − form adds one rounding on the diagonal, the product errs by γ_n and the
    difference by u; all together at most γ_{n+8}((‖κI − form‖ + ‖form‖)‖Y‖ + ‖right‖).
    """
    slack = np.diag(np.full(len(form), limit.value)) - form
    solution = np.asarray(np.linalg.solve(slack, right), dtype=np.float64)
    mass = (norm(slack) + norm(form)) * norm(solution) + norm(right)
    residual = norm(right - slack @ solution)
    return solution, residual + gamma(len(form) + 8) * mass + UNDERFLOW


def gap_between(limit: Upper, largest: Upper) -> Lower | None:
    """limit − largest, where that is safely positive."""
    gap = float((_exact(limit) - _exact(largest)).lo)
    return Lower(gap) if gap > _LEAST_GAP * limit.value else None


def symmetric(matrix: FloatArray) -> FloatArray:
    """The symmetric part; its rounding is part of the error bounds of the callers."""
    result: FloatArray = 0.5 * (matrix + matrix.T)
    return result


def _exact(bound: Upper) -> Interval:
    return Interval.exact(np.asarray(bound.value))
