"""Jacobians of moves and sums of entries, written out as matrices."""

from __future__ import annotations

import math

import numpy as np

from lipcert.core.forms.links import ROUNDING, Diagonal, Link, Matrix, divided
from lipcert.core.interval import exact
from lipcert.core.program import Centre, IndexArray, Move, ReduceSum, Shape


def of_entries(op: Move | ReduceSum | Centre, shape: Shape, after: Shape) -> Link:
    """The Jacobian of a step between values of two shapes, in row-major order."""
    match op:
        case Move(sources):
            return _move(sources.ravel(), math.prod(shape), after)
        case ReduceSum():
            return _sum(op, shape, after)
        case Centre(axes):
            return _centre(axes, shape)


def _sum(op: ReduceSum, shape: Shape, after: Shape) -> Matrix:
    """1, or 1 divided by the number of terms, where an entry belongs to a sum."""
    targets = np.broadcast_to(np.arange(math.prod(after)).reshape(after), shape).ravel()
    total = np.zeros((math.prod(after), targets.size))
    total[targets, np.arange(targets.size)] = 1.0
    terms = math.prod(shape[axis] for axis in op.axes) if op.mean else 1
    return divided(total, np.full((1, 1), float(terms)))


def _centre(axes: Shape, shape: Shape) -> Matrix:
    """I − 11ᵀ/m on each block of m entries: two roundings each."""
    kept = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
    blocks = np.broadcast_to(np.arange(math.prod(kept)).reshape(kept), shape).ravel()
    together = blocks[:, np.newaxis] == blocks
    share = 1.0 / max(math.prod(shape[axis] for axis in axes), 1)
    centre = np.eye(blocks.size) - np.where(together, share, 0.0)
    return Matrix(centre, np.abs(centre) * ROUNDING)


def _move(sources: IndexArray, size: int, after: Shape) -> Link:
    """1 where an entry comes from."""
    if np.array_equal(sources, np.arange(size)):
        return Diagonal(exact(np.ones(size)))
    entries = np.zeros((math.prod(after), size))
    inside = np.flatnonzero(sources >= 0)
    entries[inside, sources[inside]] = 1.0
    return Matrix(entries, None)
