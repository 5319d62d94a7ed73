"""Sums over axes, sums of values, and values side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, round_down, round_up, sqrt_up
from lipcert.core.interval import Interval
from lipcert.core.program import Add, Concat, ReduceSum, Shape
from lipcert.core.rules.diagonals import copies
from lipcert.core.rules.facts import Fact, root_up


def summed(op: ReduceSum, x: Fact, before: Shape, shape: Shape) -> Fact:
    """√n·X or X/√n for n terms, and the sum of the intervals. Attained by equal entries."""
    count = math.prod(before[axis] for axis in op.axes)
    known = math.prod(x.box.shape[axis] for axis in op.axes)  # each stands for count/known terms
    factor = Fraction(count, known) / (count if op.mean else 1)
    share = Interval(np.array(round_down(factor)), np.array(round_up(factor)))
    box = x.box.sum(op.axes) * share
    if (x.box.lo >= 0.0).all():
        box = Interval(np.maximum(box.lo, 0.0), np.maximum(box.hi, 0.0))
    return Fact.of(shape, multiply_up(sum_norm(op, before), x.norm), box)


def sum_norm(op: ReduceSum, before: Shape) -> float:
    """√n, or 1/√n for the mean: the norm of each row; rows are disjoint. Attained always."""
    count = math.prod(before[axis] for axis in op.axes)
    return sqrt_up(Fraction(1, count) if op.mean else Fraction(count))


def added(op: Add, inputs: Sequence[Fact], shapes: Sequence[Shape], shape: Shape) -> Fact:
    """Σ √m_i·X_i, where broadcasting repeats x_i m_i times. Attained by parallel values."""
    if not len(op.signs) == len(inputs) or not set(op.signs) <= {1, -1}:
        raise ValueError("a sum does not have one sign for each value")
    boxes = [x.box if sign == 1 else -x.box for sign, x in zip(op.signs, inputs, strict=True)]
    norm = run = column = 0.0
    for x, before in zip(inputs, shapes, strict=True):
        repeated = root_up(copies(before, shape))
        norm = add_up(norm, multiply_up(repeated, x.norm))
        whole = before == shape
        run = add_up(run, x.run if whole else multiply_up(repeated, x.norm))
        column = add_up(column, x.column if whole else multiply_up(repeated, x.norm))
    return Fact.of(shape, norm, reduce(Interval.__add__, boxes), run, column)


def joined(op: Concat, inputs: Sequence[Fact], shapes: Sequence[Shape], shape: Shape) -> Fact:
    """√Σ X_i², and the boxes side by side; runs across the seams likewise."""
    rank = len(shape)
    axis = op.axis % rank
    whole = [max(x.box.shape[i] for x in inputs) for i in range(rank)]
    boxes = [
        x.box.broadcast((*whole[:axis], before[axis], *whole[axis + 1 :]))
        for x, before in zip(inputs, shapes, strict=True)
    ]
    low = np.concatenate([box.lo for box in boxes], axis=axis)
    high = np.concatenate([box.hi for box in boxes], axis=axis)
    runs, columns = [x.run for x in inputs], [x.column for x in inputs]
    return Fact.of(
        shape,
        _root_sum_square([x.norm for x in inputs]),
        Interval(low, high),
        _root_sum_square(runs) if axis == rank - 1 else max(runs),
        _root_sum_square(columns) if axis == rank - 2 else max(columns),
    )


def _root_sum_square(lengths: Sequence[float]) -> float:
    return sqrt_up(reduce(add_up, (multiply_up(x, x) for x in lengths), 0.0))
