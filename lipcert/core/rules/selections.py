"""Steps that pick entries: extremes along axes, their order, and rows of a table.

At a tie a framework picks any of the equal entries; the generalised Jacobians are the convex
combinations of the picks, and every rule here is convex in them.
"""

import math
from collections.abc import Iterator

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.kinds import Embedding, ReduceMax, Sort
from lipcert.core.program import Operand
from lipcert.core.rules.base import Rule
from lipcert.core.rules.broadcasting import summed
from lipcert.core.rules.facts import Cotangent, Fact, root_up


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


class EmbeddingRule(Rule[Embedding]):
    """y[..., :] = table[x[...], :] at P positions."""

    def fact(self) -> Fact:
        """Every run is a row of the table, whatever the numbers are.

        Attained: by the longest row at every position.
        """
        op, weights = self.op, self.weights
        width = op.table.shape[-1:]
        if len(op.table.shape) != 2 or self.shape != (*self.before, *width) or 0 in op.table.shape:
            raise ValueError("a table does not fit what is read of it")
        rows = weights.entries(op.table)
        low, high = np.min(rows.lo, axis=0), np.max(rows.hi, axis=0)
        ends = (end.reshape(*(1,) * len(self.before), -1) for end in (low, high))
        return Fact.of(self.shape, box=Interval(*ends), row_norm=weights.longest_row(op.table))

    def lipschitz(self, _: int) -> float:
        """None: the numbers only name rows, and neighbours among them have nothing in common."""
        return math.inf

    def operand_gradients(self, cotangent: Cotangent) -> Iterator[tuple[Operand, float]]:
        """√P·l, and the sum of the cotangents at all positions, as if they named one row.

        Proof: rows of the table receive sums of some of them, and ‖·‖₂ of several is at most their
        sum.
        """
        row = (*(1,) * len(self.before), self.shape[-1])
        for operand, found in super().operand_gradients(cotangent):
            yield operand, min(found, summed(cotangent, self.shape, row))

    def reaches(self) -> Iterator[tuple[Operand, float]]:
        """√P: all positions may name one row, whose gradient is then the sum of all cotangents.

        Proof: the map is that of a matrix with one 1 in each of its P rows; its columns are
        disjoint, with at most P ones. Attained where all numbers are equal.
        """
        yield self.op.table, root_up(math.prod(self.before))
