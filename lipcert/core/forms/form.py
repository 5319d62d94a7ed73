"""Quadratic forms that bound a Jacobian: JJᵀ ≤ P, and what follows from that.

Each method rounds upwards. Methods that factor a matrix take the arithmetic to use as an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import final

import numpy as np

from lipcert.core.arithmetic import multiply_up, sqrt_up
from lipcert.core.interval import Array, Interval, exact, norm_up, up
from lipcert.core.norms.definite import Definite, room_for
from lipcert.core.rules.facts import Cotangent, Hull


@final
@dataclass(frozen=True, eq=False)
class Form:
    """JJᵀ ≤ 4^exponent·matrix for every Jacobian J of one run: ‖Jᵀg‖² ≤ 4^exponent·gᵀ·matrix·g.

    matrix: symmetric, finite. runs: how many runs of equal length a value has; the Jacobian of
    each is bounded so. proof: decides whether a matrix is positive semidefinite.
    """

    matrix: Array
    exponent: int
    runs: int
    proof: Definite

    def cotangent(self, above: Cotangent) -> float:
        """≥ ‖Jᵀg‖ for the cotangents g above: the better of ball and hull."""
        by_hull = math.inf if above.hull is None else self.over_hull(above.hull)
        if above.hull is not None and by_hull < math.inf and above.norm > 1.38 * above.hull.scale:
            return by_hull  # a ball of about the same radius cannot do better
        return min(by_hull, multiply_up(self.over_ball(), above.norm))

    def over_ball(self) -> float:
        """≥ ‖J‖."""
        return self._ball

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Untrusted eigenvalues, and eigenvectors as columns; a limit where none are found."""
        try:
            values, vectors = np.linalg.eigh(self.matrix)
        except np.linalg.LinAlgError:
            size = len(self.matrix)
            return np.full(size, norm_up(self.matrix)), np.eye(size)
        return np.asarray(values), np.asarray(vectors)

    @cached_property
    def _ball(self) -> float:
        """The root of a level that the form is proved to stay below.

        Proof: the squares of the runs add up. Otherwise by the Frobenius norm.
        """
        level = Fraction(float(self.spectrum[0][-1]))
        size = len(self.matrix)
        if level > 0:
            unit = Fraction(2) ** (_magnitude(level) + 1)
            level = Fraction(float(level + unit * room_for(size)))
            gap = float(level) * np.eye(size) - self.matrix
            # one rounding on the diagonal, of a number below the level
            scaled = np.ldexp(gap, -_magnitude(level) - 1)
            if self.proof(scaled, Fraction(1, 1 << 53)):
                return self.root(level)
        return self.root(Fraction(norm_up(self.matrix)))

    def over_hull(self, hull: Hull) -> float:
        """≥ sup ‖Jᵀg‖ over a hull with one class for each entry of a single run; inf for another.

        Proof: a convex function is largest at a vertex e_j − t, t = (1 − s)e_y + (s/K)1, where the
        form is Q_jj − 2(Qt)_j + tᵀQt.
        """
        size = len(self.matrix)
        if self.runs != 1 or hull.classes != size:
            return math.inf
        form, smoothing = exact(self.matrix), exact(hull.smoothing)
        keep, share = exact(1.0) - smoothing, smoothing * exact(float(size)).reciprocal()
        own = exact(self.matrix.diagonal())
        mean = form.sum((1,)) * share.broadcast((size, 1))
        at_target = own * keep * keep + _flat(mean) * keep * exact(2.0) + mean.sum((0,)) * share
        image = form * keep + mean  # (Qt)_j for the label y: [j, y]
        squares = Interval(own.lo[:, None], own.hi[:, None]) - image * exact(2.0) + at_target
        largest = Fraction(max(float(np.max(squares.hi)), 0.0))
        return multiply_up(self.root(largest), hull.scale)

    def swing(self, radius: float) -> Array:
        """≥ |Jd| entry by entry of a run, for ‖d‖ ≤ radius.

        Proof: e_iᵀJJᵀe_i ≤ Q_ii.
        """
        roots = up(np.sqrt(np.maximum(self.matrix.diagonal(), 0.0)))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            lengths = up(np.ldexp(roots, self.exponent))
            return np.where(np.isfinite(lengths), up(radius * lengths), np.inf)

    def reach(self, value: Interval, radius: float) -> float:
        """≥ ‖v + Jd‖ for every v in `value` [runs, size] and ‖d‖ ≤ radius over all runs."""
        from lipcert.core.forms.reach import reach  # noqa: PLC0415  round known values only

        return reach(self, value, radius)

    def root(self, square: Fraction) -> float:
        """√square·2^exponent."""
        return sqrt_up(square * Fraction(4) ** self.exponent)


def _magnitude(number: Fraction) -> int:
    """k with number < 2^k ≤ 4·number."""
    return number.numerator.bit_length() - number.denominator.bit_length() + 1


def _flat(column: Interval) -> Interval:
    return Interval(column.lo[:, 0], column.hi[:, 0])
