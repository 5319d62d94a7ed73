"""The halves of a normalisation: x − m, and x over the norm of a block or a floor."""

import math

import numpy as np

from lipcert.core.arithmetic import divide_up, multiply_down, multiply_up
from lipcert.core.interval import Interval, absolute, clip, down, exact, symmetric
from lipcert.core.kinds import Centre, DivideByNorm
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
    """x/max(share·‖x‖₂, floor) for every block x."""

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
        """L = 1/D for D ≤ max(share·‖x‖, floor) of every block.

        Proof: with d = share·‖x‖ and u = x/‖x‖ of a block, the Jacobian is I/floor where d < floor,
        (I − uuᵀ)/d where d > floor, and between them where both meet. Attained: at x = 0.
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
        """≤ max(share·‖x‖, floor) of every block: the entries of the box nearest to 0."""
        axes, near = {axis % len(self.shape) for axis in self.op.axes}, absolute(self.x.box).lo
        full = [self.shape[axis] if axis in axes else size for axis, size in enumerate(near.shape)]
        squares = (exact(near) * exact(near)).broadcast(tuple(full)).sum(tuple(axes)).lo
        length = float(np.min(down(np.sqrt(np.maximum(squares, 0.0)))))
        share = max(float(np.min(self.op.share.lo)), 0.0)
        return max(self.op.floor, multiply_down(share, max(length, 0.0)))
