"""Sums over axes, sums of values, and values side by side."""

import math
from fractions import Fraction
from functools import reduce

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Interval, clip, enclosed
from lipcert.core.rules.base import Rule
from lipcert.core.rules.broadcasting import copies
from lipcert.core.rules.facts import Cotangent, Fact, root_up
from lipcert.core.token_kinds import Add, ReduceSum


class ReduceSumRule(Rule[ReduceSum]):
    """Sum or mean over axes."""

    def fact(self) -> Fact:
        """√n·X or X/√n for n terms, and the sum of the intervals. Attained by equal entries."""
        op, x, count = self.op, self.x, self._count
        known = math.prod(x.box.shape[axis] for axis in op.axes)  # each stands for count/known
        share = enclosed(Fraction(count, known) / (count if op.mean else 1))
        box = x.box.sum(op.axes) * share
        if (x.box.lo >= 0.0).all():
            box = clip(box, 0.0, math.inf)
        return Fact.of(self.shape, multiply_up(self.lipschitz(0), x.norm), box)

    def lipschitz(self, _: int) -> float:
        """√n, or 1/√n for the mean: the norm of each row; rows are disjoint. Attained always."""
        return sqrt_up(Fraction(1, self._count) if self.op.mean else Fraction(self._count))

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """L·l, also for peaks.

        Proof: what goes back is each run n times at most, stretched along the last axis if that is
        summed, or a share of it: the largest entry stays.
        """
        longest = self.lipschitz(index)
        norm, peaks = (multiply_up(longest, length) for length in (cotangent.norm, cotangent.peak))
        return Cotangent(norm, peaks=peaks)

    def is_apart(self, _: int, axis: int) -> bool:
        """Along axes that are not summed."""
        rank = len(self.shape)
        return axis % rank not in {own % rank for own in self.op.axes}

    @property
    def _count(self) -> int:
        return math.prod(self.before[axis] for axis in self.op.axes)


class AddRule(Rule[Add]):
    """Σ ±x_i, broadcast."""

    def fact(self) -> Fact:
        """Σ √m_i·X_i, where broadcasting repeats x_i m_i times. Attained by parallel values."""
        inputs, shapes, signs = self.inputs, self.shapes, self.op.signs
        if not len(signs) == len(inputs) or not set(signs) <= {1, -1}:
            raise ValueError("a sum does not have one sign for each value")
        boxes = [x.box if sign == 1 else -x.box for sign, x in zip(signs, inputs, strict=True)]
        norm = run = column = 0.0
        for index, (x, before) in enumerate(zip(inputs, shapes, strict=True)):
            longest = multiply_up(self.lipschitz(index), x.norm)
            norm = add_up(norm, longest)
            whole = before == self.shape
            run = add_up(run, x.row_norm if whole else longest)
            column = add_up(column, x.column_norm if whole else longest)
        return Fact.of(self.shape, norm, reduce(Interval.__add__, boxes), run, column)

    def lipschitz(self, index: int) -> float:
        """√m for a value that is repeated m times: disjoint columns of ones. Attained always."""
        return root_up(copies(self.shapes[index], self.shape))

    def is_apart(self, index: int, _: int) -> bool:
        """Along all axes where nothing is repeated."""
        return self.shapes[index] == self.shape

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """L·l, with hull and rows where the value is added as it is."""
        kept = self.op.signs[index] == 1 and self.shapes[index] == self.shape
        norm = multiply_up(self.lipschitz(index), cotangent.norm)
        if not kept:
            return Cotangent(norm)
        return Cotangent(norm, cotangent.hull, peaks=cotangent.peaks, rows=cotangent.rows)
