"""Steps that pick or order entries along axes: ReduceMax, Sort.

At a tie a framework picks any of the equal entries; the generalised Jacobians are the convex
combinations of the picks, and every rule here is convex in them.
"""

import math

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.kinds import ReduceMax, Sort
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Fact


class ReduceMaxRule(Rule[ReduceMax]):
    """The maximum or the minimum over axes."""

    def fact(self) -> Fact:
        """X, and the extremes of both ends: an output is an entry, and slices are disjoint."""
        chosen, box = np.min if self.op.minimum else np.max, self.x.box
        low, high = (chosen(end, axis=self.op.axes, keepdims=True) for end in (box.lo, box.hi))
        return Fact.of(self.shape, self.x.norm, Interval(np.asarray(low), np.asarray(high)))

    def lipschitz(self, _: int) -> float:
        """1: every row picks one entry of its own, or mixes such rows. Attained always."""
        return 1.0


class SortRule(Rule[Sort]):
    """Entries in order along an axis."""

    def fact(self) -> Fact:
        """X, of runs along the axis too, and one interval for all entries along the axis.

        Proof: sorting permutes each of them. Either order is covered.
        """
        x, rank = self.x, len(self.shape)
        axis = self.op.axis % rank
        low = np.min(x.box.lo, axis=axis, keepdims=True)
        high = np.max(x.box.hi, axis=axis, keepdims=True)
        run = x.row_norm if axis == rank - 1 else math.inf
        column = x.column_norm if axis == rank - 2 else math.inf
        return Fact.of(self.shape, x.norm, Interval(low, high), run, column)

    def lipschitz(self, _: int) -> float:
        """1, the norm of a permutation, or of a mean of some. Attained always."""
        return 1.0
