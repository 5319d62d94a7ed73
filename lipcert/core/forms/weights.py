"""Weights: what unknown slopes add to differences of classes, measured entry by entry.

In `forms.signs`, slopes μ + ρs with |s| ≤ 1 add ρsu to a vector u, and the linear steps below make
d = Aᵀ(ρsu) of that. With any numbers a > 0 of the entries of d and b > 0 of those of u (not
trusted), if ‖diag(a)·Aᵀ·diag(b)‖ ≤ 1, then
    Σ (a·d)² ≤ Σ (ρsu/b)² ≤ Σ (ρu/b)².
Let d be a cotangent of what a convolution computes, up to slopes m. The gradient of the kernel into
channel c has, for each input channel i and tap t, the entry Σ_p x_i(p + t)·m_c(p)·d_c(p). By Cauchy
and Schwarz, the squares of these add up to at most
    Σ_p (a_c(p)·d_c(p))² · Σ_p,i,t x_i(p + t)²·(m_c(p)/a_c(p))².
Let R² be the largest value of the latter sum, of all channels c: ‖gradient‖ ≤ R·‖ρu/b‖.
Attained: where u has one entry.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Array, Interval, exact, up
from lipcert.core.norms.claim import NormCheck, all_at_most
from lipcert.core.program import IndexArray

MAX_ENTRIES: Final = 1 << 23
"""of A"""


def is_contraction(matrix: Interval, inner: Array, outer: Array, check: NormCheck) -> bool:
    """Whether ‖diag(a)·Aᵀ·diag(b)‖ ≤ 1 could be proved, for A = matrix, [above, below]."""
    if not ((inner > 0.0).all() and (outer > 0.0).all()):
        return False
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        weighted = matrix * exact(inner) * exact(outer[:, None])
    try:
        return all_at_most(weighted, 1.0, 1.0, check)
    except ValueError:
        return False


def weighted_reach(
    weights: Array, reads: IndexArray, largest: Array, norm: float, groups: int
) -> float:
    """R, for the largest magnitudes of m/a, [channels, windows].

    reads: the pixel of each window and tap, or −1, no pixel twice for one tap. largest: magnitudes
    of x, [input channels, pixels]; norm: of x.
    Proof: the sum is linear in the squares y of x, with a factor w ≥ 0 for each pixel. As y ≤ l²
    and Σ y ≤ X², for any v ≥ 0 it is at most vX² + Σ l²·max(w − v, 0).
    """
    own, factors = up(weights * weights), np.zeros((len(weights), largest.shape[1]))
    for places in reads.T:
        used = np.flatnonzero(places >= 0)
        factors[:, places[used]] = up(factors[:, places[used]] + own[:, used])
    squares = exact(largest) * exact(largest)
    rooms = squares.moved(lambda end: end.reshape(groups, -1, largest.shape[1])).sum((1,)).hi
    most, total = 0.0, multiply_up(norm, norm)
    for channel, row in enumerate(factors):
        room = rooms[channel * groups // len(weights), 0]
        order = np.argsort(-row, kind="stable")
        filled = np.flatnonzero(np.cumsum(room[order]) >= total)
        level = float(row[order[filled[0]]]) if len(filled) else 0.0
        above = row > level
        rest = float(exact(up(up(row[above] - level) * room[above])).sum((0,)).hi[0])
        most = max(most, add_up(multiply_up(level, total), rest))
    return sqrt_up(most)
