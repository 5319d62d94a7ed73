"""Quadratic forms that bound a Jacobian: JJᵀ ≤ P, and what follows from that.

Each method rounds upwards. Methods that factor a matrix take the arithmetic to use as an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final, final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Array, Interval, exact, norm_up, up
from lipcert.core.norms.definite import MAX_SIZE, Definite, room_for
from lipcert.core.rules.facts import Cotangent, Hull

_LEVELS: Final = 200


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
    def _spectrum(self) -> tuple[Array, Array]:
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
        level = Fraction(float(self._spectrum[0][-1]))
        size = len(self.matrix)
        if level > 0:
            unit = Fraction(2) ** (_magnitude(level) + 1)
            level = Fraction(float(level + unit * room_for(size)))
            gap = float(level) * np.eye(size) - self.matrix
            # one rounding on the diagonal, of a number below the level
            scaled = np.ldexp(gap, -_magnitude(level) - 1)
            if self.proof(scaled, Fraction(1, 1 << 53)):
                return self._root(level)
        return self._root(Fraction(norm_up(self.matrix)))

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
        return multiply_up(self._root(largest), hull.scale)

    def swing(self, radius: float) -> Array:
        """≥ |Jd| entry by entry of a run, for ‖d‖ ≤ radius.

        Proof: e_iᵀJJᵀe_i ≤ Q_ii.
        """
        roots = up(np.sqrt(np.maximum(self.matrix.diagonal(), 0.0)))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            lengths = up(np.ldexp(roots, self.exponent))
            return np.where(np.isfinite(lengths), up(radius * lengths), np.inf)

    def reach(self, value: Interval, radius: float) -> float:
        """≥ ‖v + Jd‖ for every v in `value` [runs, size] and ‖d‖ ≤ radius over all runs.

        Proof: ‖v‖ + ‖J‖R. Also, for λ > λ_max(Q), maximising over d,
            ‖v + Jd‖² ≤ λ‖d‖² + λ·vᵀ(λI − JJᵀ)⁻¹v ≤ λ‖d‖² + λ·vᵀ(λI − Q)⁻¹v,
        and the last product is at most c if [[λI − Q, v], [vᵀ, c]] is positive semidefinite (so is
        then λI − Q, and Q may be replaced by limits from below). The squares of the runs add, and
        one matrix with a border row for each v serves all: c is then a diagonal entry of its
        corner. λ is not trusted, nor is the corner; the distance of v to its middle is added.
        Attained: for a single matrix, up to the choice of λ.
        """
        simple = add_up(multiply_up(self.over_ball(), radius), norm_up(value.magnitude()))
        middle = 0.5 * value.lo + 0.5 * value.hi
        size = len(self.matrix) + len(middle)
        if not (math.isfinite(simple) and size <= MAX_SIZE and middle.any() and radius > 0.0):
            return simple
        rest = norm_up(np.maximum(up(value.hi - middle), up(middle - value.lo)))
        unit = math.frexp(norm_up(middle))[1]
        offsets = np.ldexp(middle, -unit)
        with np.errstate(over="ignore"):
            far = float(np.ldexp(radius, self.exponent - unit))
        level = self._best_level(offsets, far)
        corner = self._corner(level, offsets)
        if corner is None:
            return simple
        # in units of 4^exponent for λ and 4^unit for v vᵀ
        square = Fraction(level) * (
            Fraction(radius) ** 2 * Fraction(4) ** self.exponent + corner * Fraction(4) ** unit
        )
        return min(simple, add_up(sqrt_up(square), rest))

    def _corner(self, level: float, offsets: Array) -> Fraction | None:
        """≥ Σ vᵀ(λI − Q)⁻¹v over the rows v, for rows of a total norm of at most 1; None: unproved.

        All is scaled so that λ and the corner are below ½. λI − Q is rounded on the diagonal, by at
        most u/2 then, and the other half of u covers what underflows.
        """
        size, count = len(self.matrix), len(offsets)
        half = -(-(math.frexp(level)[1] + 1) // 2)
        gap = np.ldexp(level * np.eye(size) - self.matrix, -2 * half)
        room = 2.0 * float(room_for(size + count))
        try:
            solved = np.linalg.solve(gap - room * np.eye(size), offsets.T)
        except np.linalg.LinAlgError:
            return None
        corner = offsets @ solved
        shift = max(math.frexp(float(np.max(corner.diagonal(), initial=1e-300)))[1], -60)
        exponent = -(-(shift + 1) // 2)
        corner = np.ldexp(0.5 * corner + 0.5 * corner.T, -2 * exponent) + room * np.eye(count)
        border = np.ldexp(offsets, -exponent)
        whole = np.block([[gap, border.T], [border, corner]])
        if not (np.isfinite(whole).all() and self.proof(whole, Fraction(1, 1 << 53))):
            return None
        total = sum((Fraction(c) for c in corner.diagonal().tolist()), Fraction(0))
        return total * Fraction(4) ** (exponent - half)

    def _best_level(self, offsets: Array, radius: float) -> float:
        """An untrusted λ > λ_max(Q) for which λR² + λ·vᵀ(λI − Q)⁻¹v is small."""
        values, vectors = self._spectrum
        squares = np.sum((offsets @ vectors) ** 2, axis=0)
        levels = max(float(values[-1]), 1e-300) * (1.0 + np.geomspace(1e-6, 1e6, _LEVELS))
        with np.errstate(over="ignore", invalid="ignore"):
            far = np.square(np.float64(radius))
            costs = levels * (far + (squares / (levels[:, None] - values)).sum(axis=1))
        return float(levels[np.argmin(costs)])

    def _root(self, square: Fraction) -> float:
        """√square·2^exponent."""
        return sqrt_up(square * Fraction(4) ** self.exponent)


def _magnitude(number: Fraction) -> int:
    """k with number < 2^k ≤ 4·number."""
    return number.numerator.bit_length() - number.denominator.bit_length() + 1


def _flat(column: Interval) -> Interval:
    return Interval(column.lo[:, 0], column.hi[:, 0])
