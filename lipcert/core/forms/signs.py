"""Sign expansion: differences of classes, pulled back through layers of unknown slopes.

Above every value let g be the difference e_i − e_j of two classes, pulled down from the scores. A
step that acts entry by entry has slopes μ + ρs with |s| ≤ 1, whatever they are. Then what arrives
below is
    q = u + d,
u what a network with the slopes μ in place of all others makes of e_i − e_j, a vector that is
known, and d what the differences ρs add. Downwards, with u and ‖d‖ ≤ r above,
    through A:         u ↦ Aᵀu,   r ↦ ‖A‖r;
    through slopes:    u ↦ μu,    r ↦ ρ‖q‖ + |μ|r,   since (μ + ρs)q = μu + μd + ρsq;
and ‖q‖ is at most ‖u‖ + r, and at most max|slope| and ‖A‖ times what it was above.
Attained: where no slope is unknown; ‖u‖ of several matrices in a row is that of their product.
Reference: P. L. Combettes and J.-C. Pesquet, Lipschitz certificates for layered network structures
driven by averaged activation operators, SIAM J. Math. Data Sci. 2 (2020), for such an expansion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from lipcert.core.arithmetic import add_up
from lipcert.core.interval import Array, Interval, exact, up
from lipcert.core.rules.facts import lengths_up


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """Of all pairs of classes, at one value.

    vectors: [classes, entries], whose differences are the u; rests ≥ ‖d‖ and sizes ≥ ‖q‖ for each
    pair, [classes, classes].
    """

    vectors: Interval
    rests: Array
    sizes: Array

    @classmethod
    def of_classes(cls, classes: int) -> Self:
        """At the scores, where nothing is added yet."""
        vectors, nothing = exact(np.eye(classes)), np.zeros((classes, classes))
        return cls(vectors, nothing, distances(vectors))

    def through_matrix(self, vectors: Interval, norm: float) -> Differences:
        """vectors: what the matrix makes of them; norm: its own."""
        return self._limited(vectors, up(norm * self.rests), up(norm * self.sizes))

    def through_slopes(self, slopes: Interval) -> Differences:
        """slopes: of all entries. One μ and one ρ serve for all."""
        middle, radius, most = ball_of(slopes)
        rests = up(up(radius * self.sizes) + up(abs(middle) * self.rests))
        return self._limited(self.vectors * exact(middle), rests, up(most * self.sizes))

    def meet(self, other: Differences) -> Differences:
        """Both, about the same vectors."""
        rests, sizes = np.minimum(self.rests, other.rests), np.minimum(self.sizes, other.sizes)
        return Differences(self.vectors, rests, sizes)

    def _limited(self, vectors: Interval, rests: Array, sizes: Array) -> Differences:
        """‖q‖ ≤ ‖u‖ + ‖d‖, too."""
        return Differences(vectors, rests, np.minimum(sizes, up(distances(vectors) + rests)))


def ball_of(slopes: Interval) -> tuple[float, float, float]:
    """μ and ρ for all entries, and the largest magnitude."""
    low, high = float(np.min(slopes.lo)), float(np.max(slopes.hi))
    middle = low if low == high else 0.5 * low + 0.5 * high
    return middle, max(add_up(high, -middle), add_up(middle, -low)), max(abs(low), abs(high))


def distances(vectors: Interval) -> Array:
    """≥ ‖u_i − u_j‖ for all rows u_i and u_j.

    Proof: ‖u_i − u_j‖ ≤ ‖c_i − c_j‖ + ‖r_i‖ + ‖r_j‖ for centres c and distances r from them, and
    ‖c_i − c_j‖² = ‖c_i‖² + ‖c_j‖² − 2c_i·c_j.
    """
    centre, radius = vectors.ball()
    products = exact(centre) @ exact(centre.T)
    own, errors = products.hi.diagonal(), lengths_up(radius)
    squares = up(up(own[:, None] + own) - 2.0 * products.lo)
    apart = up(np.sqrt(np.maximum(squares, 0.0)))
    np.fill_diagonal(apart, 0.0)
    return up(up(apart + errors[:, None]) + errors)
