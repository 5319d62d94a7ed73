"""Maps that act on every entry by itself: factors, offsets, and both per channel."""

from __future__ import annotations

import math

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up
from lipcert.core.interval import Interval, norm_up
from lipcert.core.program import BatchNorm, Scale, Shape, Shift
from lipcert.core.rules.facts import Fact, longest_run, root_up
from lipcert.core.rules.weights import Weights


def copies(before: Shape, after: Shape) -> int:
    """How often broadcasting from one shape into another repeats every entry."""
    if np.broadcast_shapes(before, after) != after:
        raise ValueError(f"{before} does not broadcast into {after}")
    return math.prod(after) // max(math.prod(before), 1)


def per_channel(interval: Interval, rank: int) -> Interval:
    """[channels] along axis 1 of a value of this rank."""
    shape = (1, -1, *[1] * (rank - 2))
    return Interval(interval.lo.reshape(shape), interval.hi.reshape(shape))


def batch_factor(op: BatchNorm, weights: Weights) -> Interval:
    """scale·inverse of each channel."""
    return weights.entries(op.scale) * weights.entries(op.inverse)


def scaled(op: Scale, x: Fact, shape: Shape, weights: Weights) -> Fact:
    """max|s|·X, also for runs. Attained where X may sit on the entry of the largest factor."""
    copies(op.factor.shape, shape)
    largest = weights.max_abs(op.factor)
    norm, run, column = (multiply_up(largest, length) for length in (x.norm, x.run, x.column))
    return Fact.of(shape, norm, x.box * weights.entries(op.factor), run, column)


def shifted(op: Shift, x: Fact, shape: Shape, weights: Weights) -> Fact:
    """X + √m·‖b‖ for an offset repeated m times. Attained where x is parallel to it."""
    offset = weights.entries(op.offset)
    added = multiply_up(root_up(copies(op.offset.shape, shape)), weights.norm(op.offset))
    run, column = (min(added, longest_run(offset, shape, axis)) for axis in (-1, -2))
    return Fact.of(
        shape, add_up(x.norm, added), x.box + offset, add_up(x.run, run), add_up(x.column, column)
    )


def normalised(op: BatchNorm, x: Fact, shape: Shape, weights: Weights) -> Fact:
    """f·x + t, f = scale·inverse, t = shift − f·mean: max|f|·X + √P·‖t‖ at P positions.

    Proof: ‖t‖ is at most that of its box, and at most ‖shift‖ + ‖f·mean‖.
    Attained: at X = 0; without t by one channel.
    """
    factor = batch_factor(op, weights)
    moved = factor * weights.entries(op.mean)
    offset = weights.entries(op.shift) - moved
    added = add_up(weights.norm(op.shift), norm_up(moved.magnitude()))
    added = multiply_up(
        root_up(copies((1, *op.scale.shape, *[1] * (len(shape) - 2)), shape)),
        min(added, norm_up(offset.magnitude())),
    )
    largest = float(np.max(factor.magnitude(), initial=0.0))
    box = x.box * per_channel(factor, len(shape)) + per_channel(offset, len(shape))
    return Fact.of(shape, add_up(multiply_up(largest, x.norm), added), box)
