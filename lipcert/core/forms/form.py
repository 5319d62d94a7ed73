"""Quadratic forms that bound a Jacobian: JJᵀ ≤ P, and what follows from that, rounded upwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np

from lipcert.core.arithmetic import multiply_up, round_down
from lipcert.core.interval import Array, exact, norm_up, up
from lipcert.core.norms.claim import Definite
from lipcert.core.rules.facts import Hull


@final
@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """JJᵀ ≤ 4^exponent·matrix for every Jacobian J of one run: ‖Jᵀg‖² ≤ 4^exponent·gᵀ·matrix·g.

    matrix: symmetric, finite. runs: how many runs of equal length a value has; the Jacobian of
    each is bounded so. proof: decides whether a matrix is positive semidefinite. norm ≥ ‖J‖, where
    that is stated and proved by `has_norm`.
    """

    matrix: Array
    exponent: int
    runs: int
    proof: Definite
    norm: float = math.inf

    def has_norm(self, norm: float) -> bool:
        """Whether ‖J‖ ≤ norm could be proved, for all runs: their squares add up.

        Proof: JJᵀ ≤ level·I in units of 4^exponent, by the Frobenius norm of the matrix, or as
        level·I − matrix is positive semidefinite. It is scaled so that entries are below ½, with
        one rounding on the diagonal, of a number below the level.
        """
        level = round_down(Fraction(norm) ** 2 / Fraction(4) ** self.exponent)
        if norm_up(self.matrix) <= level:
            return True
        with np.errstate(over="ignore", under="ignore"):
            gap = level * np.eye(len(self.matrix)) - self.matrix
            scaled = np.ldexp(gap, -math.frexp(level)[1] - 1)
        return level > 0.0 and self.proof(scaled, Fraction(1, 1 << 53))

    def over_hull(self, hull: Hull) -> float:
        """≥ sup ‖Jᵀg‖ over a hull of one class for each entry of a single run; else inf."""
        if self.runs != 1 or hull.classes != len(self.matrix):
            return math.inf
        return multiply_up(hull.longest(exact(self.matrix)), Fraction(2) ** self.exponent)

    def swing(self, radius: float) -> Array:
        """≥ |Jd| entry by entry of a run, for ‖d‖ ≤ radius.

        Proof: e_iᵀJJᵀe_i ≤ Q_ii.
        """
        roots = up(np.sqrt(np.maximum(self.matrix.diagonal(), 0.0)))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            lengths = up(np.ldexp(roots, self.exponent))
            return np.where(np.isfinite(lengths), up(radius * lengths), np.inf)
