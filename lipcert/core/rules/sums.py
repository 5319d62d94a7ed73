"""Sums over axes, sums of values, and values side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, round_down, round_up, sqrt_up
from lipcert.core.interval import Interval
from lipcert.core.program import Add, Concat, ReduceSum
from lipcert.core.rules.base import WithoutOperands
from lipcert.core.rules.broadcasting import copies
from lipcert.core.rules.facts import Cotangent, Fact, root_up


class ReduceSumRule(WithoutOperands[ReduceSum]):
    """Sum or mean over axes."""

    def fact(self) -> Fact:
        """√n·X or X/√n for n terms, and the sum of the intervals. Attained by equal entries."""
        op, x, count = self.op, self.x, self._count
        known = math.prod(x.box.shape[axis] for axis in op.axes)  # each stands for count/known
        factor = Fraction(count, known) / (count if op.mean else 1)
        share = Interval(np.array(round_down(factor)), np.array(round_up(factor)))
        box = x.box.sum(op.axes) * share
        if (x.box.lo >= 0.0).all():
            box = Interval(np.maximum(box.lo, 0.0), np.maximum(box.hi, 0.0))
        return Fact.of(self.shape, multiply_up(self.lipschitz(0), x.norm), box)

    def lipschitz(self, index: int) -> float:
        """√n, or 1/√n for the mean: the norm of each row; rows are disjoint. Attained always."""
        del index
        return sqrt_up(Fraction(1, self._count) if self.op.mean else Fraction(self._count))

    @property
    def _count(self) -> int:
        return math.prod(self.before[axis] for axis in self.op.axes)


class AddRule(WithoutOperands[Add]):
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

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """L·l, with hull and rows where the value is added as it is."""
        kept = self.op.signs[index] == 1 and self.shapes[index] == self.shape
        norm = multiply_up(self.lipschitz(index), cotangent.norm)
        return Cotangent(norm, cotangent.hull, rows=cotangent.rows) if kept else Cotangent(norm)


class ConcatRule(WithoutOperands[Concat]):
    """y = the values side by side."""

    def fact(self) -> Fact:
        """√Σ X_i², and the boxes side by side; runs across the seams likewise. Attained always."""
        inputs, rank = self.inputs, len(self.shape)
        axis = self.op.axis % rank
        whole = [max(x.box.shape[i] for x in inputs) for i in range(rank)]
        boxes = [
            x.box.broadcast((*whole[:axis], before[axis], *whole[axis + 1 :]))
            for x, before in zip(inputs, self.shapes, strict=True)
        ]
        low = np.concatenate([box.lo for box in boxes], axis=axis)
        high = np.concatenate([box.hi for box in boxes], axis=axis)
        runs, columns = [x.row_norm for x in inputs], [x.column_norm for x in inputs]
        return Fact.of(
            self.shape,
            _root_sum_square([x.norm for x in inputs]),
            Interval(low, high),
            _root_sum_square(runs) if axis == rank - 1 else max(runs),
            _root_sum_square(columns) if axis == rank - 2 else max(columns),
        )

    def lipschitz(self, index: int) -> float:
        """1, since y contains x as it is. Attained always."""
        del index
        return 1.0

    def pulled(self, index: int, cotangent: Cotangent) -> Cotangent:
        """l, or the part of it at this value, where the parts known of l are those of the values.

        Proof: with no axis of more than one entry before the seams, the values lie one after
        another in row-major order.
        """
        sizes = [math.prod(shape) for shape in self.shapes]
        in_a_row = math.prod(self.shape[: self.op.axis % len(self.shape)]) == 1
        if in_a_row and sizes == [size for size, _ in cotangent.parts]:
            _, part = cotangent.parts[index]
            return replace(part, norm=min(part.norm, cotangent.norm))
        return Cotangent(cotangent.norm)


def _root_sum_square(lengths: Sequence[float]) -> float:
    return sqrt_up(reduce(add_up, (multiply_up(x, x) for x in lengths), 0.0))
