"""Gradients of kernels: correlations with cotangents of unknown masks, and weights of entries.

The gradient of a kernel at tap t, from input channel i into output channel c, is Σ_p x_i(p + t)·
m_c(p)·v_c(p), v a vector that is known and m slopes within intervals: m = μ + ρs, |s| ≤ 1. With
x ≥ 0 its magnitude is at most |Σ_p x_i(p + t)·μ_c(p)·v_c(p)| + Σ_p x_i(p + t)·ρ_c(p)·|v_c(p)|. Of
an image let D and S be the correlations with μv and with ρ|v|, as matrices [channels·taps, pixels].
For every a > 0, by (d + s)² ≤ (1 + 1/a²)(a²d² + s²) for each entry of the gradient,
    ‖gradient‖ ≤ σ‖x‖,    σ² = (1 + 1/a²)·‖[aD; S]‖²,
the squares of the input channels being added up. Where entries of x may be negative, |x| takes the
place of x, with μ = 0 and ρ = max|m|.
What looks stronger is false: of the positive and the negative part of each v_c, all taps together,
the larger one bounds nothing, since a mask may use one sign for one tap and the other for the next.
Attained: where no slope is unknown, for one input channel, by the best x without signs.

What unknown slopes add to differences of classes is measured entry by entry. In `forms.signs`,
slopes μ + ρs with |s| ≤ 1 add ρsu to a vector u, and the linear steps below make d = Aᵀ(ρsu) of
that. With any numbers a > 0 of the entries of d and b > 0 of those of u (not trusted), if
‖diag(a)·Aᵀ·diag(b)‖ ≤ 1, then
    Σ (a·d)² ≤ Σ (ρsu/b)² ≤ Σ (ρu/b)².
Let d be a cotangent of what a convolution computes, up to slopes m. The gradient of the kernel into
channel c has, for each input channel i and tap t, the entry Σ_p x_i(p + t)·m_c(p)·d_c(p). By Cauchy
and Schwarz, the squares of these add up to at most
    Σ_p (a_c(p)·d_c(p))² · Σ_p,i,t x_i(p + t)²·(m_c(p)/a_c(p))².
Let R² be the largest value of the latter sum, of all channels c: ‖gradient‖ ≤ R·‖ρu/b‖.
Attained: where u has one entry.
"""

from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Array, Interval, absolute, exact, up
from lipcert.core.line import NotProved
from lipcert.core.program import IndexArray

MAX_ENTRIES: Final = 1 << 24
MAX_BETWEEN: Final = 1 << 23
"""of A"""


def correlated(vector: Interval, slopes: Interval, ratio: float, *, nonnegative: bool) -> Interval:
    """aμv and ρ|v|: [2, channels, windows]."""
    middle, radius = slopes.ball()
    if not nonnegative:
        middle, radius = np.zeros_like(middle), slopes.magnitude()
    signed = vector * exact(middle) * exact(ratio)
    plain = absolute(vector) * exact(radius)
    return Interval(np.stack([signed.lo, plain.lo]), np.stack([signed.hi, plain.hi]))


def laid_out(parts: Array, reads: IndexArray, pixels: int) -> Array:
    """[aD; S], from what is correlated."""
    flat, taps = parts.reshape(-1, len(reads)), reads.shape[1]
    rows = len(flat)
    if rows * taps * pixels > MAX_ENTRIES:
        raise NotProved("a correlation is too large")
    found = np.zeros((rows, taps, pixels))
    for tap, places in enumerate(reads.T):
        used = np.flatnonzero(places >= 0)
        found[:, tap, places[used]] = flat[:, used]
    return found.reshape(rows * taps, pixels)


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
