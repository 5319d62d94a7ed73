"""The halves of a normalisation: x − m, and x over the norm of a block or a floor."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import divide_up, multiply_up, round_down, round_up
from lipcert.core.interval import Interval, exact, symmetric
from lipcert.core.program import Centre, DivideByNorm, Shape
from lipcert.core.rules.base import Rule
from lipcert.core.rules.broadcasting import block_holds, block_size
from lipcert.core.rules.facts import Fact, box_norm, root_up


class CentreRule(Rule[Centre]):
    """Px, the projection of x away from what is constant on blocks."""

    def fact(self) -> Fact:
        """‖Px‖ ≤ min(X, ‖x − c‖), the box less its mean; runs that are whole blocks as they are.

        Proof: ‖P‖ ≤ 1 and Px = P(x − c) for any c that is constant on blocks, here the middle of
        what the box allows a block. Attained: by x without mean; by equally many entries at both
        ends.
        """
        x, shape = self.x, self.shape
        if block_size(self.op.axes, shape) == 1:
            return Fact.of(shape, 0.0)
        axes = tuple(axis % len(shape) for axis in self.op.axes)
        known = math.prod(x.box.shape[axis] for axis in axes)  # each stands for several entries
        share = Interval(*(np.array(end(Fraction(1, known))) for end in (round_down, round_up)))
        low = np.min(x.box.lo, axis=axes, keepdims=True)
        high = np.max(x.box.hi, axis=axes, keepdims=True)
        is_known = np.isfinite(low) & np.isfinite(high)
        middle = 0.5 * np.where(is_known, low, 0.0) + 0.5 * np.where(is_known, high, 0.0)
        distance = box_norm(x.box - exact(middle), shape)
        return Fact.of(
            shape,
            min(x.norm, distance),
            x.box - x.box.sum(axes) * share,
            x.row_norm if axes == (len(shape) - 1,) else math.inf,
            x.column_norm if axes == (len(shape) - 2,) else math.inf,
        )

    def lipschitz(self, _: int) -> float:
        """1, the norm of a projection; 0 for blocks of one entry. Attained always."""
        return 0.0 if block_size(self.op.axes, self.before) == 1 else 1.0

    def is_apart(self, _: int, axis: int) -> bool:
        """Along axes on which blocks have length 1."""
        return axis % len(self.shape) not in {own % len(self.shape) for own in self.op.axes}


class DivideByNormRule(Rule[DivideByNorm]):
    """x/max(share·‖x‖₂, floor) for every block x."""

    def fact(self) -> Fact:
        """min(√τ/share, X/floor) for τ blocks; entries are t·x with 0 ≤ t ≤ 1/floor.

        Attained: the norm shared equally between blocks.
        """
        x, shape, steepest, radius = self.x, self.shape, self.lipschitz(0), self._radius
        if not (steepest < math.inf and radius < math.inf):
            return Fact.of(shape)
        axes = {axis % len(shape) for axis in self.op.axes}
        blocks = math.prod(shape) // max(block_size(self.op.axes, shape), 1)
        norm = min(multiply_up(root_up(blocks), radius), multiply_up(steepest, x.norm))
        box = x.box * Interval(np.zeros(()), np.array(steepest))
        box = box.meet(symmetric(radius, (1,) * len(shape)))
        if (x.box.lo >= 0.0).all():
            box = Interval(np.maximum(box.lo, 0.0), np.maximum(box.hi, 0.0))

        def line(axis: int, before: float) -> float:
            inside = radius if len(shape) + axis in axes else math.inf
            return min(inside, multiply_up(steepest, before))

        return Fact.of(shape, norm, box, line(-1, x.row_norm), line(-2, x.column_norm))

    def lipschitz(self, _: int) -> float:
        """1/floor.

        Proof: with d = share·‖x‖ and u = x/‖x‖ of a block, the Jacobian is I/floor where d < floor,
        (I − uuᵀ)/d where d > floor, and between them where both meet. Attained: at x = 0.
        """
        return divide_up(1.0, self.op.floor) if self.op.floor > 0.0 else math.inf

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
