"""Normalisations in parts: x − m, x over the norm of a block and a floor, and local responses."""

import math

import numpy as np

from lipcert.core.arithmetic import add_up, divide_up, multiply_down, multiply_up, sqrt_up
from lipcert.core.enclosures import exp, log
from lipcert.core.interval import Interval, absolute, clip, down, exact, symmetric
from lipcert.core.kinds import Centre, DivideByNorm, LocalResponse
from lipcert.core.program import Shape
from lipcert.core.rules.base import Rule
from lipcert.core.rules.broadcasting import block_holds, block_size, centred
from lipcert.core.rules.facts import Fact, root_up


class CentreRule(Rule[Centre]):
    """Px, the projection of x away from what is constant on blocks."""

    def fact(self) -> Fact:
        """The fact that `centred` finds of each block."""
        return centred(self.x, self.op.axes, self.shape)

    def lipschitz(self, _: int) -> float:
        """1, the norm of a projection; 0 for blocks of one entry. Attained always."""
        return 0.0 if block_size(self.op.axes, self.before) == 1 else 1.0

    def is_apart(self, _: int, axis: int) -> bool:
        """Along axes on which blocks have length 1."""
        return axis % len(self.shape) not in {own % len(self.shape) for own in self.op.axes}


class DivideByNormRule(Rule[DivideByNorm]):
    """x/h for every block x, h = ‖(share·‖x‖₂, floor)‖_p ≥ max(share·‖x‖₂, floor)."""

    def fact(self) -> Fact:
        """min(√τ/share, X·L) for τ blocks; entries are t·x with 0 ≤ t ≤ L.

        Attained: the norm shared equally between blocks.
        """
        x, shape, steepest, radius = self.x, self.shape, self.lipschitz(0), self._radius
        if not radius < math.inf:
            return Fact.of(shape)
        axes = {axis % len(shape) for axis in self.op.axes}
        blocks = math.prod(shape) // max(block_size(self.op.axes, shape), 1)
        norm = min(multiply_up(root_up(blocks), radius), multiply_up(steepest, x.norm))
        box = symmetric(radius, (1,) * len(shape))
        if steepest < math.inf:
            box = (x.box * Interval(np.zeros(()), np.array(steepest))).meet(box)
        if (x.box.lo >= 0.0).all():
            box = clip(box, 0.0, math.inf)

        def line(axis: int, before: float) -> float:
            inside = radius if len(shape) + axis in axes else math.inf
            return min(inside, multiply_up(steepest, before))

        return Fact.of(shape, norm, box, line(-1, x.row_norm), line(-2, x.column_norm))

    def lipschitz(self, _: int) -> float:
        """L = 1/D for D ≤ h of every block.

        Proof: with r = ‖x‖ and u = x/r of a block, the Jacobian is (I − (r·h′/h)·uuᵀ)/h, where
        0 ≤ r·h′ ≤ h: h grows with r and the floor, and h = r·∂h/∂r + floor·∂h/∂floor (Euler). For
        p = inf it lies between both sides' where they meet. Attained: at x = 0.
        """
        least = self._least
        return divide_up(1.0, least) if least > 0.0 else math.inf

    def is_apart(self, _: int, axis: int) -> bool:
        """Along axes on which blocks have length 1."""
        return axis % len(self.shape) not in {own % len(self.shape) for own in self.op.axes}

    def longest_part(self, operand: Shape) -> float:
        """The radius of a block that holds all that one entry of the operand meets."""
        return self._radius if block_holds(self.op.axes, operand, self.shape) else math.inf

    @property
    def _radius(self) -> float:
        """1/share ≥ the norm of every block."""
        share = float(np.min(self.op.share.lo))
        return divide_up(1.0, share) if share > 0.0 else math.inf

    @property
    def _least(self) -> float:
        """≤ h of every block: the entries of the box nearest to 0."""
        axes, near = {axis % len(self.shape) for axis in self.op.axes}, absolute(self.x.box).lo
        full = [self.shape[axis] if axis in axes else size for axis, size in enumerate(near.shape)]
        squares = (exact(near) * exact(near)).broadcast(tuple(full)).sum(tuple(axes)).lo
        length = float(np.min(down(np.sqrt(np.maximum(squares, 0.0)))))
        share = max(float(np.min(self.op.share.lo)), 0.0)
        return max(float(np.min(self.op.floor.lo)), multiply_down(share, max(length, 0.0)))


class LocalResponseRule(Rule[LocalResponse]):
    """y = x·s^−β, s = floor + (strength/size)·Σ x_j² over the channels j around each; β = power."""

    def fact(self) -> Fact:
        """X·floor^−β, and every entry between 0 and floor^−β times it, because s ≥ floor.

        Attained: approached as X → 0; exactly at strength 0.
        """
        shrink = self._shrink()
        if shrink == math.inf:
            return Fact.of(self.shape)
        largest = self.x.box * exact(shrink)
        box = Interval(clip(largest, -math.inf, 0.0).lo, clip(largest, 0.0, math.inf).hi)
        return Fact.of(self.shape, multiply_up(shrink, self.x.norm), box)

    def lipschitz(self, _: int) -> float:
        """floor^−β·(1 + 2√size·(1 + 1/β)^−(β+1)).

        Proof: J = D − B with 0 < D = diag(s^−β) ≤ floor^−β and, for the channels j around i,
        B_ij = (2β·strength/size)·x_i·x_j·s_i^−(β+1). With a = (strength/size)·Σ_j x_j², which is
        s_i − floor, row i has the norm at most 2β·a/(floor + a)^(β+1), because |x_i| is one of the
        |x_j|; this is largest at a = floor/β, where it is r = 2·floor^−β·(1 + 1/β)^−(β+1). Each
        entry of x occurs in at most `size` rows, so ‖Bv‖² ≤ Σ_i r²·‖v around i‖² ≤ r²·size·‖v‖².
        Hypotheses: size ≥ 1, strength ≥ 0, β ≥ 0, floor > 0. Attained: at x = 0 up to the second
        term.
        """
        op, steepness = self.op, 1.0
        if op.power > 0.0 and op.strength > 0.0:
            base = exact(1.0) + exact(op.power).reciprocal()
            falls = exp(-((exact(op.power) + exact(1.0)) * log(base)))
            rise = multiply_up(2.0 * float(falls.hi), sqrt_up(float(op.size)))
            steepness = add_up(1.0, rise)
        return multiply_up(self._shrink(), steepness)

    def _shrink(self) -> float:
        """≥ floor^−β, by e^(−β·ln floor); inf for numbers that the proofs do not cover."""
        op = self.op
        if not (op.size >= 1 and op.strength >= 0.0 and op.power >= 0.0 and op.floor > 0.0):
            return math.inf
        if op.power == 0.0 or op.floor == 1.0:
            return 1.0
        return float(exp(exact(-op.power) * log(exact(op.floor))).hi)
