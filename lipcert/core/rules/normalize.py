"""Normalisation of blocks: x̂ = (x − m)/√(q + ε), q the mean square or the variance of a block."""

import math

import numpy as np

from lipcert.core.arithmetic import (
    add_down,
    divide_down,
    divide_up,
    multiply_down,
    multiply_up,
    sqrt_down,
    sqrt_up,
)
from lipcert.core.interval import Array, Interval, down, symmetric, up
from lipcert.core.program import Shape
from lipcert.core.rules.base import Rule
from lipcert.core.rules.broadcasting import block_holds, block_size, centred
from lipcert.core.rules.facts import Fact, root_up
from lipcert.core.token_kinds import Normalize


class NormalizeRule(Rule[Normalize]):
    """x̂ = (x − m)/√(q + ε), where m is 0 if not centred."""

    def fact(self) -> Fact:
        """Bounds of x̂, of its entries, and of its runs: inside a block, or across blocks.

        From the norm, runs and box of x − m; of a block that is a run, from the longest run.
        """
        shape, block = self.shape, block_size(self.op.axes, self.shape)
        axes, rank = {axis % len(shape) for axis in self.op.axes}, len(shape)
        x = centred(self.x, self.op.axes, shape) if self.op.centred else self.x
        runs: dict[Shape, float] = {(rank - 1,): x.row_norm, (rank - 2,): x.column_norm}
        longest = runs.get(tuple(axes), x.norm)

        def line(axis: int) -> float:
            if rank < -axis:
                return math.inf
            length = shape[axis]
            inside = rank + axis in axes
            return self._part(longest, 1, length) if inside else self._part(x.norm, length, 1)

        norm = self._part(x.norm, math.prod(shape) // block, block)
        box = Interval(-self._entries(-x.box.lo), self._entries(x.box.hi))
        box = box.meet(symmetric(self._part(longest, 1, 1), (1,) * rank))
        return Fact.of(shape, norm, box, line(-1), line(-2))

    def _entries(self, above: Array) -> Array:
        """≥ x̂ at entries with x − m at most so large: √s·u/√(u² + s·ε), s as of `_part`.

        Proof: n·q ≥ u² + u²/(n − 1) where the other n − 1 entries of x − m sum up to −u, hence
        q ≥ u²/s, and u/√(u²/s + ε) grows with u. Attained: where all those others are equal.
        """
        share, u = self._share(1), np.maximum(above, 0.0)
        if share == 0:
            return np.zeros_like(u)
        with np.errstate(over="ignore", under="ignore"):
            inverse = down(down(np.array(1.0 / share)) + down(self.op.epsilon / up(u * u)))
            return up(1.0 / down(np.sqrt(inverse)))

    def _share(self, picked: int) -> int:
        """s of `_part`."""
        n = block_size(self.op.axes, self.shape)
        return n - 1 if self.op.centred and picked == 1 else n

    def lipschitz(self, _: int) -> float:
        """1/√ε; inf for ε = 0, 0 where x̂ is always 0.

        Proof: the Jacobian of a block is (P − x̂x̂ᵀ/n)/√(q + ε) with the projection P = I, or
        P = I − 11ᵀ/n, and 0 ≤ P − x̂x̂ᵀ/n ≤ I.
        Attained: at q = 0.
        """
        epsilon = self.op.epsilon
        if self.op.centred and block_size(self.op.axes, self.shape) == 1:
            return 0.0
        return divide_up(1.0, sqrt_down(epsilon)) if epsilon > 0.0 else math.inf

    def is_apart(self, _: int, axis: int) -> bool:
        """Along axes on which blocks have length 1."""
        return axis % len(self.shape) not in {own % len(self.shape) for own in self.op.axes}

    def longest_part(self, operand: Shape) -> float:
        """√n for n entries of a block that holds all that one entry of the operand meets.

        Proof: x̂² sums up to n·q/(q + ε) ≤ n, q being the mean square.
        """
        if not block_holds(self.op.axes, operand, self.shape):
            return math.inf
        return root_up(block_size(self.op.axes, self.shape))

    def _part(self, longest: float, blocks: int, picked: int) -> float:
        """≥ ‖x̂_S‖, where S picks so many entries in each of so many blocks of n entries, and
        x − m is at most `longest` over these blocks.

        Proof: in one block Σ_S x̂² ≤ s·q/(q + ε): s = n, since Σ x̂² = n·q/(q + ε); s = n − 1 for a
        single entry if Σ x̂ = 0 (Cauchy–Schwarz on the others). q/(q + ε) is concave in q, and
        Σ n·q ≤ X², so that τ blocks have at most s·τ·X²/(X² + n·τ·ε).
        Attained: s = n − 1 by one entry against all others; s = n by two opposite entries, or any
        entry if not centred; the norm shared equally between blocks.
        """
        n, epsilon = block_size(self.op.axes, self.shape), self.op.epsilon
        square = multiply_up(longest, longest)
        if epsilon <= 0.0 or not 0.0 < square < math.inf:
            fraction = 0.0 if square == 0.0 and epsilon > 0.0 else 1.0
        else:
            damping = divide_down(multiply_down(float(n * blocks), epsilon), square)
            fraction = divide_up(1.0, add_down(1.0, damping))
        return sqrt_up(multiply_up(float(self._share(picked) * blocks), fraction))
