"""Steps that pick or order entries: MaxPool, ReduceMax, Sort.

At a tie a framework picks any of the equal entries; the generalised Jacobians are the convex
combinations of the picks, and every rule here is convex in them.
"""

from __future__ import annotations

import math

import numpy as np

from lipcert.core.arithmetic import multiply_up
from lipcert.core.interval import Array, Interval
from lipcert.core.program import MaxPool, ReduceMax, Shape, Sort, Window
from lipcert.core.rules.facts import Fact, root_up
from lipcert.core.rules.windows import Axis, axes_of


def read_axes(window: Window, before: Shape) -> tuple[Axis, ...] | None:
    """The axes of windows; None where a window reads nothing but padding."""
    axes = axes_of(window, before[2:])
    return axes if all(axis.at_outputs.any(axis=1).all() for axis in axes) else None


def overlap(axes: tuple[Axis, ...]) -> int:
    """The largest number of windows that read one position, at least 1."""
    counts = (int(np.max(axis.at_positions.sum(axis=1), initial=1)) for axis in axes)
    return math.prod(counts)


def max_pooled(op: MaxPool, x: Fact, before: Shape, shape: Shape) -> Fact:
    """√overlap·X, and the maxima of both ends of the box; nothing where a window reads nothing.

    Proof: every output is an entry, and no entry is more than `overlap` outputs. The Jacobian
    mixes rows that pick one entry each: rows of sum 1, columns of sum ≤ overlap, and ‖J‖² is at
    most the product of both.
    Attained: one entry is the maximum of every window that reads it.
    """
    axes = read_axes(op.window, before)
    if axes is None:
        return Fact.of(shape)
    box = Interval(_largest(x.box.lo, axes), _largest(x.box.hi, axes))
    return Fact.of(shape, multiply_up(root_up(overlap(axes)), x.norm), box)


def extreme(op: ReduceMax, x: Fact, shape: Shape) -> Fact:
    """X, and the extremes of both ends: an output is an entry, and slices are disjoint."""
    chosen = np.min if op.minimum else np.max
    low, high = (chosen(end, axis=op.axes, keepdims=True) for end in (x.box.lo, x.box.hi))
    return Fact.of(shape, x.norm, Interval(np.asarray(low), np.asarray(high)))


def sorted_fact(op: Sort, x: Fact, shape: Shape) -> Fact:
    """X, of runs along the axis too, and one interval for all entries along the axis.

    Proof: sorting permutes each of them. Either order is covered.
    """
    axis = op.axis % len(shape)
    low = np.min(x.box.lo, axis=axis, keepdims=True)
    high = np.max(x.box.hi, axis=axis, keepdims=True)
    run = x.run if axis == len(shape) - 1 else math.inf
    column = x.column if axis == len(shape) - 2 else math.inf
    return Fact.of(shape, x.norm, Interval(low, high), run, column)


def _largest(end: Array, axes: tuple[Axis, ...]) -> Array:
    """The maximum over windows, one axis after the other; an end that is shared stays so."""
    for place, axis in enumerate(axes, start=2):
        if end.shape[place] == axis.size != 1:
            last = np.moveaxis(end, place, -1)
            padded = np.append(last, np.full((*last.shape[:-1], 1), -np.inf), axis=-1)
            end = np.moveaxis(np.max(padded[..., axis.reads], axis=-1), -1, place)
    return end
