"""Normalisation of blocks: x̂ = (x − m)/√(q + ε), q the mean square or the variance of a block.

And its two halves by themselves: x − m, and x over the norm of a block or a floor.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import (
    add_down,
    divide_down,
    divide_up,
    multiply_down,
    multiply_up,
    round_down,
    round_up,
    sqrt_down,
    sqrt_up,
)
from lipcert.core.interval import Interval, exact, symmetric
from lipcert.core.program import Centre, DivideByNorm, Normalize, Shape
from lipcert.core.rules.base import WithoutOperands
from lipcert.core.rules.facts import Fact, box_norm, root_up


class NormalizeRule(WithoutOperands[Normalize]):
    """x̂ = (x − m)/√(q + ε), where m is 0 if not centred."""

    def fact(self) -> Fact:
        """Bounds of x̂, of its entries, and of its runs: inside a block, or across blocks."""
        shape, block = self.shape, _block(self.op.axes, self.shape)
        axes = {axis % len(shape) for axis in self.op.axes}

        def line(axis: int) -> float:
            if len(shape) < -axis:
                return math.inf
            inside = len(shape) + axis in axes
            return self._part(*((1, shape[axis]) if inside else (shape[axis], 1)))

        entry = self._part(1, 1)
        norm = self._part(math.prod(shape) // block, block)
        return Fact.of(shape, norm, symmetric(entry, (1,) * len(shape)), line(-1), line(-2))

    def lipschitz(self, index: int) -> float:
        """1/√ε; inf for ε = 0, 0 where x̂ is always 0.

        Proof: the Jacobian of a block is (P − x̂x̂ᵀ/n)/√(q + ε) with the projection P = I, or
        P = I − 11ᵀ/n, and 0 ≤ P − x̂x̂ᵀ/n ≤ I.
        Attained: at q = 0.
        """
        del index
        epsilon = self.op.epsilon
        if self.op.centred and _block(self.op.axes, self.shape) == 1:
            return 0.0
        return divide_up(1.0, sqrt_down(epsilon)) if epsilon > 0.0 else math.inf

    def longest_part(self, operand: Shape) -> float:
        """√n for n entries of a block that holds all that one entry of the operand meets.

        Proof: x̂² sums up to n·q/(q + ε) ≤ n, q being the mean square.
        """
        if not _holds(self.op.axes, operand, self.shape):
            return math.inf
        return root_up(_block(self.op.axes, self.shape))

    def _part(self, blocks: int, picked: int) -> float:
        """≥ ‖x̂_S‖, where S picks so many entries in each of so many blocks of n entries.

        Proof: in one block Σ_S x̂² ≤ s·q/(q + ε): s = n, since Σ x̂² = n·q/(q + ε); s = n − 1 for a
        single entry if Σ x̂ = 0 (Cauchy–Schwarz on the others). q/(q + ε) is concave in q, and
        Σ n·q ≤ X², so that τ blocks have at most s·τ·X²/(X² + n·τ·ε).
        Attained: s = n − 1 by one entry against all others; s = n by two opposite entries, or any
        entry if not centred; the norm shared equally between blocks.
        """
        n, epsilon = _block(self.op.axes, self.shape), self.op.epsilon
        share = n - 1 if self.op.centred and picked == 1 else n
        square = multiply_up(self.x.norm, self.x.norm)
        if epsilon <= 0.0 or not 0.0 < square < math.inf:
            fraction = 0.0 if square == 0.0 and epsilon > 0.0 else 1.0
        else:
            damping = divide_down(multiply_down(float(n * blocks), epsilon), square)
            fraction = divide_up(1.0, add_down(1.0, damping))
        return sqrt_up(multiply_up(float(share * blocks), fraction))


class CentreRule(WithoutOperands[Centre]):
    """Px, the projection of x away from what is constant on blocks."""

    def fact(self) -> Fact:
        """‖Px‖ ≤ min(X, ‖x − c‖), the box less its mean; runs that are whole blocks as they are.

        Proof: ‖P‖ ≤ 1 and Px = P(x − c) for any c that is constant on blocks, here the middle of
        what the box allows a block. Attained: by x without mean; by equally many entries at both
        ends.
        """
        x, shape = self.x, self.shape
        if _block(self.op.axes, shape) == 1:
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

    def lipschitz(self, index: int) -> float:
        """1, the norm of a projection; 0 for blocks of one entry. Attained always."""
        del index
        return 0.0 if _block(self.op.axes, self.before) == 1 else 1.0


class DivideByNormRule(WithoutOperands[DivideByNorm]):
    """x/max(share·‖x‖₂, floor) for every block x."""

    def fact(self) -> Fact:
        """min(√τ/share, X/floor) for τ blocks; entries are t·x with 0 ≤ t ≤ 1/floor.

        Attained: the norm shared equally between blocks.
        """
        x, shape, steepest, radius = self.x, self.shape, self.lipschitz(0), self._radius
        if not (steepest < math.inf and radius < math.inf):
            return Fact.of(shape)
        axes = {axis % len(shape) for axis in self.op.axes}
        blocks = math.prod(shape) // max(_block(self.op.axes, shape), 1)
        norm = min(multiply_up(root_up(blocks), radius), multiply_up(steepest, x.norm))
        box = x.box * Interval(np.zeros(()), np.array(steepest))
        box = box.meet(symmetric(radius, (1,) * len(shape)))
        if (x.box.lo >= 0.0).all():
            box = Interval(np.maximum(box.lo, 0.0), np.maximum(box.hi, 0.0))

        def line(axis: int, before: float) -> float:
            inside = radius if len(shape) + axis in axes else math.inf
            return min(inside, multiply_up(steepest, before))

        return Fact.of(shape, norm, box, line(-1, x.row_norm), line(-2, x.column_norm))

    def lipschitz(self, index: int) -> float:
        """1/floor.

        Proof: with d = share·‖x‖ and u = x/‖x‖ of a block, the Jacobian is I/floor where d < floor,
        (I − uuᵀ)/d where d > floor, and between them where both meet. Attained: at x = 0.
        """
        del index
        return divide_up(1.0, self.op.floor) if self.op.floor > 0.0 else math.inf

    def longest_part(self, operand: Shape) -> float:
        """The radius of a block that holds all that one entry of the operand meets."""
        return self._radius if _holds(self.op.axes, operand, self.shape) else math.inf

    @property
    def _radius(self) -> float:
        """1/share ≥ the norm of every block."""
        share = float(np.min(self.op.share.lo))
        return divide_up(1.0, share) if share > 0.0 else math.inf


def _block(axes: Shape, shape: Shape) -> int:
    """The number of entries of a block."""
    return math.prod(shape[axis] for axis in axes)


def _holds(axes: Shape, operand: Shape, shape: Shape) -> bool:
    """Whether all that one entry of an operand meets lies in one block."""
    met = {i for i, length in enumerate(operand) if length == 1 and shape[i] != 1}
    return met <= {axis % len(shape) for axis in axes}
