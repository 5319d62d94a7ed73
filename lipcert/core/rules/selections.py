"""Steps that pick or order entries: MaxPool, ReduceMax, Sort.

At a tie a framework picks any of the equal entries; the generalised Jacobians are the convex
combinations of the picks, and every rule here is convex in them.
"""

import math

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Array, Interval
from lipcert.core.program import MaxPool, ReduceMax, Sort
from lipcert.core.rules.base import Rule
from lipcert.core.rules.facts import Fact, root_up
from lipcert.core.rules.windows import Axis, overlap, read_axes


class MaxPoolRule(Rule[MaxPool]):
    """y = the maxima of x over windows."""

    def fact(self) -> Fact:
        """√overlap·X, and the maxima of both ends of the box; nothing of windows of padding.

        Proof: every output is an entry, and no entry is more than `overlap` outputs.
        Attained: one entry is the maximum of every window that reads it.
        """
        axes = read_axes(self.op.window, self.before)
        if axes is None:
            return Fact.of(self.shape)
        box = Interval(_largest(self.x.box.lo, axes), _largest(self.x.box.hi, axes))
        return Fact.of(self.shape, multiply_up(self.lipschitz(0), self.x.norm), box)

    def lipschitz(self, _: int) -> float:
        """√overlap.

        Proof: the Jacobian mixes rows that pick one entry each: rows of sum 1, columns of sum
        ≤ overlap, and ‖J‖² is at most the product of both. Attained: as the norm.
        """
        axes = read_axes(self.op.window, self.before)
        return root_up(overlap(axes)) if axes else math.inf


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


def _largest(end: Array, axes: tuple[Axis, ...]) -> Array:
    """The maximum over windows, one axis after the other; an end that is shared stays so."""
    for place, axis in enumerate(axes, start=2):
        if end.shape[place] == axis.size != 1:
            last = np.moveaxis(end, place, -1)
            padded = np.append(last, np.full((*last.shape[:-1], 1), -np.inf), axis=-1)
            end = np.moveaxis(np.max(padded[..., axis.reads], axis=-1), -1, place)
    return end
