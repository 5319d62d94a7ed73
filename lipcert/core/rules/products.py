"""Products and quotients of two values, entry by entry or as matrices; masks, and means over them.

Where both factors come from the input, each one's Jacobian is as large as the other can be. A mask
is computed from whole numbers.
"""

import math

import numpy as np

from lipcert.core.arithmetic import add_up, divide_up, multiply_up
from lipcert.core.interval import Interval, exact, symmetric
from lipcert.core.kinds import Compare, Divide, MaskedMean
from lipcert.core.rules.base import Rule
from lipcert.core.rules.broadcasting import copies, longest_met, ranked
from lipcert.core.rules.facts import Cotangent, Fact, root_up
from lipcert.core.token_kinds import MatMul, Multiply


class MultiplyRule(Rule[Multiply]):
    """y = x_0·x_1 entry by entry."""

    def fact(self) -> Fact:
        """The lesser of X_a·L_a and X_b·L_b, linear in either one, and the product of the boxes.

        Attained: when both norms sit on one entry.
        """
        (a, b), rank = self.inputs, len(self.shape)
        norm = min(multiply_up(a.norm, self.lipschitz(0)), multiply_up(b.norm, self.lipschitz(1)))
        return Fact.of(self.shape, norm, ranked(a.box, rank) * ranked(b.box, rank))

    def lipschitz(self, index: int) -> float:
        """≥ the largest norm of the entries of the other value that meet one entry of the value.

        Proof: the columns of the Jacobian are these, with disjoint supports.
        Attained: where the other value can sit on one of these sets of entries.
        """
        other = self.inputs[1 - index]
        return min(other.norm, longest_met(other.box, self.shapes[index], self.shape))

    def is_apart(self, index: int, _: int) -> bool:
        """Along all axes where nothing is repeated."""
        return self.shapes[index] == self.shape


class DivideRule(Rule[Divide]):
    """y = a/b entry by entry."""

    def fact(self) -> Fact:
        """X_a·L_a, linear in a, and the quotient of the boxes; nothing where b may be 0.

        Attained: as L_a.
        """
        (a, b), rank = self.inputs, len(self.shape)
        inverse = ranked(b.box, rank).reciprocal()
        if not np.isfinite(inverse.magnitude()).all():
            return Fact.of(self.shape)
        norm = multiply_up(a.norm, self.lipschitz(0))
        return Fact.of(self.shape, norm, ranked(a.box, rank) * inverse)

    def lipschitz(self, index: int) -> float:
        """≥ the norm of the entries of 1/b, or of a/b², that meet one entry of a, or of b.

        Proof: ∂y/∂a = 1/b and ∂y/∂b = −a/b²; the columns of each Jacobian have disjoint supports.
        inf where the box of b holds 0.
        Attained: where |b| is least on all that meets an entry, and |a| largest.
        """
        (a, b), rank = self.inputs, len(self.shape)
        inverse = ranked(b.box, rank).reciprocal()
        if index == 0:
            return longest_met(inverse, self.shapes[0], self.shape)
        largest = float(np.max(inverse.magnitude(), initial=0.0))
        met = min(a.norm, longest_met(a.box, self.shapes[1], self.shape))
        by_norm = multiply_up(multiply_up(met, largest), largest)
        slopes = ranked(a.box, rank) * (inverse * inverse)
        return min(by_norm, longest_met(slopes, self.shapes[1], self.shape))


class MatMulRule(Rule[MatMul]):
    """y = A @ B."""

    def fact(self) -> Fact:
        """The lesser of X_a·L_a and X_b·L_b, and the product of the boxes, rows times columns.

        Proof: linear in either one; an entry is a row of A times a column of B (Cauchy–Schwarz).
        Of numbers that are not negative none is less than the product of their lower ends.
        Attained: by matrices of rank one.
        """
        (a, b), (left, right), rank = self.inputs, self.shapes, len(self.shape)
        if min(len(left), len(right)) < 2:
            return Fact.of(self.shape)
        norm = min(multiply_up(a.norm, self.lipschitz(0)), multiply_up(b.norm, self.lipschitz(1)))
        rows = a.box.broadcast((*a.box.shape[:-2], *left[-2:]))
        columns = b.box.broadcast((*b.box.shape[:-2], *right[-2:]))
        box = rows @ columns
        if not ((rows.lo < 0.0).any() or (columns.lo < 0.0).any()):
            least = exact(rows.lo) @ exact(columns.lo)
            box = Interval(np.maximum(box.lo, least.lo), box.hi)
        entry = symmetric(multiply_up(a.row_norm, b.column_norm), (1,) * rank)
        return Fact.of(self.shape, norm, ranked(box, rank).meet(entry))

    def lipschitz(self, index: int) -> float:
        """≥ the Frobenius norm of all matrices of the other value that multiply one of the value.

        Proof: A ↦ AB has norm ‖B‖₂ ≤ ‖B‖_F. A matrix of A that is repeated meets B_1, …, B_r, and
        the norm is that of [B_1 | … | B_r]; matrices of A are independent. (AB)ᵀ = BᵀAᵀ for B.
        Hypothesis: both have two axes or more. Attained: by matrices of rank one.
        """
        value, partner, other = self.shapes[index], self.shapes[1 - index], self.inputs[1 - index]
        if min(len(value), len(partner)) < 2:
            return math.inf
        whole = (*self.shape[:-2], *partner[-2:])
        return min(other.norm, longest_met(other.box, (*value[:-2], 1, 1), whole))


class CompareRule(Rule[Compare]):
    """y = 1 where a comparison holds, and 0 elsewhere."""

    def fact(self) -> Fact:
        """0 or 1, whatever x is."""
        ends = (np.full((1,) * len(self.shape), end) for end in (0.0, 1.0))
        return Fact.of(self.shape, box=Interval(*ends))

    def lipschitz(self, _: int) -> float:
        """None: it jumps from one whole number to the next."""
        return math.inf


class MaskedMeanRule(Rule[MaskedMean]):
    """y = Σ w·x over axes, with w = m/max(Σ m, floor), so that w ≥ 0 and Σ w ≤ 1 if m ≥ 0."""

    def fact(self) -> Fact:
        """The hull of what it is a mean of, and of 0 if Σ w may be less than 1; no longer than x.

        Proof: with the norm of `lipschitz`. A run of y along the last axis is a mean of runs of x
        where that axis is none of the axes, and the mask the same for all of a run.
        Attained: by a mask that shows one entry.
        """
        x, axes = self.x, self.op.axes
        if not self._is_mean:
            return Fact.of(self.shape)
        low = np.min(x.box.lo, axis=axes, keepdims=True)
        high = np.max(x.box.hi, axis=axes, keepdims=True)
        if 0.0 < self.op.floor >= self._least:
            low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        is_by_run = len(self.shape) - 1 not in axes and self.shapes[1][-1] == 1
        run = x.row_norm if is_by_run else math.inf
        return Fact.of(self.shape, x.norm, Interval(low, high), row_norm=run)

    def lipschitz(self, index: int) -> float:
        """1 in x; √n·‖x − y‖/s in m: of the entries that meet one of its, n of which make a mean,
        with the least divisor s; inf for s = 0, and for an m that is repeated along the axes.

        Proof: an entry of y is a sum of w·x over entries that no other one reads, and ‖w‖₂ ≤ Σ w.
        ∂y/∂m_i = (x_i − y)/Σ m, or x_i/floor where Σ m is less, and then 0 is in the box of y. Of a
        mean these are n columns, and the means that m_i has no share in are perpendicular.
        Attained: by a mask that shows one entry; by equal x where Σ m is less than the floor.
        """
        (x, _), mask = self.inputs, self.shapes[1]
        if not self._is_mean or index == 0:
            return 1.0 if self._is_mean else math.inf
        least, own = max(self._least, self.op.floor), [mask[axis] for axis in self.op.axes]
        if least <= 0.0 or own != [self.before[axis] for axis in self.op.axes]:
            return math.inf
        y = self.fact()
        apart = longest_met(x.box - y.box, mask, self.before)
        apart = min(apart, add_up(x.norm, y.norm))
        return divide_up(multiply_up(root_up(math.prod(own)), apart), least)

    def tokens_pulled(self, index: int, cotangent: Cotangent) -> tuple[int, float] | None:
        """Along the only axis over which the mean is taken.

        Proof: at place i along it w_i∘g goes back, for the weights w_i ≥ 0 that an entry of y gives
        there, which add up to at most 1: Σ_i ‖w_i∘g‖ ≤ Σ_i max w_i·‖g‖, if they are all the same.
        """
        long = [axis for axis in self.op.axes if self.before[axis] > 1]
        mask = self.shapes[1]
        if index or not self._is_mean or len(long) != 1 or math.prod(mask) != mask[long[0]]:
            return None
        return long[0] - len(self.shape), cotangent.norm

    @property
    def _is_mean(self) -> bool:
        """Whether the mask fits, and none of its entries is negative."""
        fits = len(self.shapes[1]) == len(self.before)
        fits = fits and copies(self.shapes[1], self.before) > 0
        return fits and bool((self.inputs[1].box.lo >= 0.0).all())

    @property
    def _least(self) -> float:
        """No Σ m is less."""
        mask = exact(self.inputs[1].box.broadcast(self.before).lo)
        return float(np.min(mask.sum(self.op.axes).lo, initial=math.inf))
