"""Dense: y[..., o] = Σ_i W[o, i]·x[..., i] + b[o] at P positions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Array, Interval, exact, norm_up, symmetric, up
from lipcert.core.program import Dense, Operand
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import (
    Cotangent,
    Fact,
    Hull,
    affine_norm,
    box_norm,
    lengths_up,
    root_up,
)

_LARGEST_HULL: Final = 5000
_BLOCK: Final = 1 << 22


class DenseRule(Rule[Dense]):
    """A matrix, and a bias at every position."""

    def fact(self) -> Fact:
        """Norm: the least of `affine_norm`, round 0 and round the centre c of the box.

        Proof: ‖Wx + b‖ ≤ ‖Wc + b‖ + ‖W‖‖x − c‖. A run is an x_p with P = 1. An entry lies in the
        product of row and box, and −‖w_o⁻‖‖x_p‖ ≤ ⟨w_o, x_p⟩ ≤ ‖w_o⁺‖‖x_p‖ where x ≥ 0, with the
        positive and the negative part of w_o; both stand for w_o itself where not.
        Attained: without bias, by the first right singular vector.
        """
        op, x, before, weights = self.op, self.x, self.before, self.weights
        if before[-1:] != op.weight.shape[1:] or self.shape != (*before[:-1], op.weight.shape[0]):
            raise ValueError("a dense weight does not fit its input")
        weight, largest = weights.entries(op.weight), self.lipschitz(0)
        positions = math.prod(before[:-1])
        bias = symmetric(0.0, (len(weight.lo),))
        shift = cross = 0.0
        if op.bias is not None:
            bias, shift = weights.entries(op.bias), weights.norm(op.bias)
            cross = norm_up(_times(bias, weight.transposed()).magnitude())
        full = x.box.broadcast((*x.box.shape[:-1], before[-1]))
        norms = [
            affine_norm(largest, x.norm, multiply_up(root_up(positions), cross), shift, positions),
            self._round_centre(full, weight, bias, largest),
        ]
        run = affine_norm(largest, x.row_norm, cross, shift, 1)
        parts = [weight.magnitude()] * 2
        if (full.lo >= 0.0).all():
            parts = [np.maximum(-weight.lo, 0.0), np.maximum(weight.hi, 0.0)]
        most = min(weights.norm(op.weight), largest)
        low, high = (
            exact(np.minimum(lengths_up(part), most)) * exact(x.row_norm) for part in parts
        )
        box = _times(full, weight).meet(Interval(-low.hi, high.hi)) + bias
        return Fact.of(self.shape, min(norms), box, run)

    def lipschitz(self, index: int) -> float:
        """‖W‖₂. Attained always."""
        del index
        return self.weights.operator_norm(self.output, self.op, self.before, self.shape)

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """‖W‖·l; also the hull's vertices, at each of P positions, √P times.

        Proof: ‖Wᵀg‖ is a convex function of g, hence largest at a vertex of the hull; the squares
        of what goes back at the positions add up.
        """
        norm = multiply_up(self.lipschitz(index), cotangent.norm)
        row = cotangent.along(self.shape)
        if row is not None and row.hull is not None and row.hull.classes == self.shape[-1]:
            longest = pair_norm(self.weights.entries(self.op.weight), row.hull)
            norm = min(norm, multiply_up(root_up(math.prod(self.shape[:-1])), longest))
        return Cotangent(norm)

    def reaches(self) -> Iterator[tuple[Operand, float]]:
        """Weight: the norm of the matrix of all x_p, at most X. Bias: √P, disjoint ones.

        Attained: where the x_p are parallel; always.
        """
        yield self.op.weight, self.x.norm
        if self.op.bias is not None:
            yield self.op.bias, root_up(math.prod(self.shape[:-1]))

    def _round_centre(
        self, full: Interval, weight: Interval, bias: Interval, largest: float
    ) -> float:
        if not np.isfinite(full.magnitude()).all():
            return math.inf
        centre = exact(0.5 * full.lo + 0.5 * full.hi)
        image = box_norm(_times(centre, weight) + bias, self.shape)
        distance = box_norm(full - centre, self.before)
        return add_up(image, multiply_up(largest, distance))


def _times(rows: Interval, weight: Interval) -> Interval:
    """Σ_i weight[o, i]·rows[..., i]."""
    length, shape = rows.shape[-1], (*rows.shape[:-1], len(weight.lo))
    flat = Interval(rows.lo.reshape(-1, length), rows.hi.reshape(-1, length))
    found = flat @ weight.transposed()
    return Interval(found.lo.reshape(shape), found.hi.reshape(shape))


def pair_norm(weight: Interval, hull: Hull) -> float:
    """≥ scale·max over classes j, y of ‖Wᵀ(e_j − t_y)‖₂, for W [classes, inputs].

    Proof: the entries of e_j − t_y sum to 0, so a vector c may be taken from every row: with
    A = W − c and B_y = (1 − s)·A_y + s·(mean of A) the vertex is A_j − B_y. Both are intervals, and
    no row is further from its lower end than the norm of all widths.
    Attained: up to rounding, where W is exact.
    """
    if hull.classes > _LARGEST_HULL or not np.isfinite(weight.magnitude()).all():
        return math.inf
    centred = weight - exact(np.mean(weight.lo, axis=0, keepdims=True))
    target = centred
    if hull.smoothing > 0.0:
        share = exact(hull.smoothing)
        mean = centred.sum((0,)) * exact(float(hull.classes)).reciprocal()
        target = centred * (exact(1.0) - share) + mean * share
    found = _largest_distance(centred.lo, target.lo)
    for rows in (centred, target):
        found = add_up(found, norm_up(up(rows.hi - rows.lo)))
    return multiply_up(found, hull.scale)


def _largest_distance(left: Array, right: Array) -> float:
    """≥ the largest distance of a row on the left from a row on the right.

    Proof: |a|² + |b|² − 2ab, each of the three terms with an error of γ_n times a bound of it, and
    two additions: less than γ_{n+4}·(max|a| + max|b|)² altogether, and 4n·2^-1022 by underflow.
    """
    terms = left.shape[1]
    longest = [float(np.max(lengths_up(rows), initial=0.0)) for rows in (left, right)]
    reach = add_up(*longest)
    if not reach < 1e150:
        return math.inf
    a = np.einsum("ij,ij->i", left, left)
    b = np.einsum("ij,ij->i", right, right)
    step = max(1, _BLOCK // max(len(right), 1))
    largest = 0.0
    for start in range(0, len(left), step):
        rows = slice(start, start + step)
        squares = a[rows, None] + b - 2.0 * (left[rows] @ right.T)
        largest = max(largest, float(np.max(squares, initial=0.0)))
    error = multiply_up((terms + 8) * 2.0**-51, multiply_up(reach, reach))
    return sqrt_up(add_up(add_up(largest, error), terms * 2.0**-1016))
