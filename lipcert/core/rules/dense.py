"""Dense: y[..., o] = Σ_i W[o, i]·x[..., i] + b[o] at P positions."""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Interval, exact, norm_up, symmetric, up
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

_LARGEST_HULL: Final = 4096
"""classes, of which every pair is looked at"""


class DenseRule(Rule[Dense]):
    """A matrix, and a bias at every position."""

    def fact(self) -> Fact:
        """Norm: the least of `affine_norm`, round 0 and round the centre c of the box.

        Proof: ‖Wx + b‖ ≤ ‖Wc + b‖ + ‖W‖‖x − c‖, and runs near c come to lie near Wc + b. A run is
        an x_p with P = 1. An entry lies in the product of row and box, and −‖w_o⁻‖‖x_p‖ ≤
        ⟨w_o, x_p⟩ ≤ ‖w_o⁺‖‖x_p‖ where x ≥ 0, with the positive and the negative part of w_o;
        both stand for w_o itself where not. Of weights that are free within a norm r, any ruv* with
        unit u, v is allowed: what the intervals of their entries say of one run is no less than
        r‖x‖ + ‖b‖, and is left out.
        Attained: without bias, by the first right singular vector.
        """
        op, x, before, weights = self.op, self.x, self.before, self.weights
        if before[-1:] != op.weight.shape[1:] or self.shape != (*before[:-1], op.weight.shape[0]):
            raise ValueError("a dense weight does not fit its input")
        weight, largest = weights.entries(op.weight), self.lipschitz(0)
        positions, spread = math.prod(before[:-1]), multiply_up(largest, x.row_spread)
        bias, shift = symmetric(0.0, (len(weight.lo),)), 0.0
        if op.bias is not None:
            bias, shift = weights.entries(op.bias), weights.norm(op.bias)
        if positions == 1 and not weights.is_fixed(op.weight):
            length = min(x.norm, x.row_norm)
            norm = add_up(multiply_up(largest, length), shift)
            box = exact(largest) * symmetric(length, self.shape) + bias
            return Fact.of(self.shape, norm, box, row_spread=spread)
        cross = norm_up((bias @ weight).magnitude())
        full = x.box.broadcast((*x.box.shape[:-1], before[-1]))
        crosses = multiply_up(root_up(positions), cross)
        norm = affine_norm(largest, x.norm, crosses, shift, positions)
        norm = min(norm, self._round_centre(full, weight, bias, largest))
        run = affine_norm(largest, x.row_norm, cross, shift, 1)
        parts = [weight.magnitude()] * 2
        if (full.lo >= 0.0).all():
            parts = [np.maximum(-weight.lo, 0.0), np.maximum(weight.hi, 0.0)]
        most = min(weights.norm(op.weight), largest)
        low, high = (np.minimum(lengths_up(part), most) for part in parts)
        reach = Interval(-low, high) * exact(x.row_norm)
        box = (full @ weight.transposed()).meet(reach) + bias
        return Fact.of(self.shape, norm, box, run, row_spread=spread)

    def lipschitz(self, _: int) -> float:
        """‖W‖₂. Attained always."""
        return self.weights.operator_norm(self.output, self.op, self.before, self.shape)

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """‖W‖·l; also the hull's vertices, at each of P positions, √P times. Peaks: the longest
        column of W times l; also the widest column, from its least entry to its largest, times the
        scale of the hull, likewise.

        Proof: ‖Wᵀg‖ is a convex function of g, hence largest at a vertex of the hull; the squares
        of what goes back at the positions add up. An entry of Wᵀg_p is a column times g_p, and at
        a vertex an entry of the column less a mean of its entries. Of free weights, as in `fact`,
        the intervals say no more of the hull than ‖W‖ does.
        """
        norm = multiply_up(self.lipschitz(index), cotangent.norm)
        weight, row = self.weights.entries(self.op.weight), cotangent.along(self.shape)
        longest = float(np.max(lengths_up(weight.transposed().magnitude()), initial=0.0))
        peaks = multiply_up(longest, cotangent.norm)
        hull = row.hull if row is not None and self.weights.is_fixed(self.op.weight) else None
        if hull is not None and hull.classes == self.shape[-1]:
            copies = root_up(math.prod(self.shape[:-1]))
            norm = min(norm, multiply_up(copies, pair_norm(weight, hull)))
            widest = up(np.max(weight.hi, axis=0) - np.min(weight.lo, axis=0))
            peak = multiply_up(float(np.max(widest, initial=0.0)), hull.scale)
            peaks = min(peaks, multiply_up(copies, peak))
        return Cotangent(norm, peaks=peaks)

    def is_apart(self, _: int, axis: int) -> bool:
        """Along all axes but the last."""
        return axis < -1

    def operand_gradients(self, cotangent: Cotangent) -> Iterator[tuple[Operand, float]]:
        """Those of `reaches`; also the sums of the cotangents over positions, of the weight times
        the longest run: it is Σ_p g_p x_pᵀ."""
        total = math.inf
        if cotangent.tokens is not None:
            from lipcert.core.rules.broadcasting import summed  # noqa: PLC0415  for such alone

            bias = (*(1,) * (len(self.shape) - 1), self.shape[-1])
            total = summed(cotangent, self.shape, bias)
        for operand, found in super().operand_gradients(cotangent):
            longest = self.x.row_norm if operand is self.op.weight else 1.0
            yield operand, min(found, multiply_up(longest, total))

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
        image = box_norm(centre @ weight.transposed() + bias, self.shape)
        distance = box_norm(full - centre, self.before)
        return add_up(image, multiply_up(largest, distance))


def pair_norm(weight: Interval, hull: Hull) -> float:
    """≥ ‖Wᵀg‖₂ for all members g of a hull, for W [classes, inputs].

    Proof: the entries of a member sum to 0, so that a vector may be taken from every row of W; and
    ‖Wᵀg‖² = gᵀ(WWᵀ)g. Attained: up to rounding, where W is exact.
    """
    if hull.classes > _LARGEST_HULL or not np.isfinite(weight.magnitude()).all():
        return math.inf
    centred = weight - exact(np.mean(weight.lo, axis=0, keepdims=True))
    return hull.longest(centred @ centred.transposed())
