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

Vectors are pulled back through single steps: rows g become gᵀJ, all of them at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from lipcert.core.arithmetic import add_up
from lipcert.core.forms.links import Diagonal, finite, link_of
from lipcert.core.interval import Array, Interval, down, exact, up
from lipcert.core.line import NotProved
from lipcert.core.program import IndexArray, Move, Operand, Shape, Step
from lipcert.core.rules.facts import lengths_up
from lipcert.core.rules.window_reads import windows_over
from lipcert.core.rules.windows import axes_of, convolution_axes
from lipcert.core.token_kinds import ReduceSum
from lipcert.core.window_kinds import AveragePool, Conv


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


def pulled(rows: Interval, step: Step, shape: Shape) -> Interval:
    """rows·J for the Jacobian J of a linear step between values in row-major order.

    shape: of what it reads. Raise NotProved where J is not known, or the result is not finite.
    """
    match step.op:
        case Conv(transposed=False):
            found = _convolved(rows, step.op, shape, step.shape)
        case AveragePool():
            found = _averaged(rows, step.op, shape, step.shape)
        case Move(sources):
            found = _moved(rows, sources.ravel(), math.prod(shape))
        case ReduceSum(axes, mean):
            terms = math.prod(shape[axis] for axis in axes) if mean else 1
            whole = rows.moved(lambda end: end.reshape(-1, *step.shape))
            found = whole.broadcast((len(rows.lo), *shape)) * exact(float(terms)).reciprocal()
        case _ if len(step.inputs) == 1:
            found = _linked(rows, step, shape)
        case _:
            raise NotProved(f"{step.output} is computed from several values")
    return finite(found.moved(lambda end: end.reshape(len(end), -1)))


def _linked(rows: Interval, step: Step, shape: Shape) -> Interval:
    """Through a diagonal, or a matrix on every run along the last axis."""
    link = link_of(step, shape, {})
    if isinstance(link, Diagonal):
        return rows * link.entries
    runs = rows.moved(lambda end: end.reshape(len(end), -1, len(link.entries.lo)))
    return runs @ link.entries


def _moved(rows: Interval, sources: IndexArray, size: int) -> Interval:
    """To where the entries come from; none of them may be repeated."""
    inside = np.flatnonzero(sources >= 0)
    if np.bincount(sources[inside], minlength=1).max() > 1:
        raise NotProved("a move repeats an entry")
    low, high = np.zeros((len(rows.lo), size)), np.zeros((len(rows.lo), size))
    low[:, sources[inside]], high[:, sources[inside]] = rows.lo[:, inside], rows.hi[:, inside]
    return Interval(low, high)


def _convolved(rows: Interval, op: Conv, shape: Shape, after: Shape) -> Interval:
    """Proof: gᵀJ at a position of channel i is the sum, over the taps through which a window p
    reads it, of Σ_o g_o(p)·K_oi(tap); through one tap, no two windows read the same."""
    axes = convolution_axes(op, shape, after)
    split = (op.groups, -1, op.weight.shape[1], math.prod(op.window.taps))
    kernel = Interval(op.weight.lo, op.weight.hi).moved(lambda end: end.reshape(split))
    above = rows.moved(lambda end: end.reshape(len(end), op.groups, -1, math.prod(after[2:])))
    low, high = np.zeros((2, len(rows.lo), *split[::2], math.prod(shape[2:])))
    for tap, places in enumerate(windows_over(shape, axes).T):
        used = np.flatnonzero(places >= 0)
        own = Interval(kernel.lo[..., tap], kernel.hi[..., tap]).transposed()
        part, where = own @ Interval(above.lo[..., used], above.hi[..., used]), places[used]
        low[..., where] = down(low[..., where] + part.lo)
        high[..., where] = up(high[..., where] + part.hi)
    return Interval(low, high)


def _averaged(rows: Interval, op: AveragePool, shape: Shape, after: Shape) -> Interval:
    """Each window divided by the number of its terms, and added up by a kernel of ones."""
    read = (windows_over(shape, axes_of(op.window, shape[2:])) >= 0).sum(axis=1)
    terms = np.full_like(read, math.prod(op.window.taps)) if op.counts_padding else read
    above = rows.moved(lambda end: end.reshape(len(end), shape[1], -1))
    ones = np.ones((shape[1], 1, *op.window.taps))
    total = Conv(Operand(ones, ones), None, op.window, shape[1], transposed=False)
    return _convolved(above * exact(terms).reciprocal(), total, shape, after)
