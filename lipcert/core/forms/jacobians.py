"""Jacobians of steps that many chains lack: moves, sums and means of entries, convolutions."""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from lipcert.core.forms.links import Diagonal, Link, Matrix, diagonal, matrix
from lipcert.core.interval import Array, Interval, exact
from lipcert.core.program import (
    AveragePool,
    BatchNorm,
    Centre,
    Conv,
    IndexArray,
    Move,
    ReduceSum,
    Shape,
)

_ROUNDING: Final = 2.0**-50
"""more than two roundings and that of an end, relative to an entry"""


def jacobian_of(
    op: BatchNorm | Conv | AveragePool | Move | ReduceSum | Centre, shape: Shape, after: Shape
) -> Link | None:
    """The Jacobian of a step between values of two shapes, in row-major order."""
    match op:
        case BatchNorm(scale, _, _, inverse):
            factors = Interval(scale.lo, scale.hi) * Interval(inverse.lo, inverse.hi)
            per_channel = (-1, *[1] * (len(shape) - 2))
            return diagonal(factors.moved(lambda end: end.reshape(per_channel)), shape)
        case Conv():
            return _conv(op, shape, after)
        case AveragePool():
            return _average(op, shape, after)
        case Move(sources):
            return _move(sources.ravel(), math.prod(shape), after)
        case ReduceSum():
            return _sum(op, shape, after)
        case Centre(axes):
            return _centre(axes, shape)


def _conv(op: Conv, shape: Shape, after: Shape) -> Matrix | None:
    """A transposed one is the transpose of what is written out."""
    from lipcert.core.norms.convolution import Kernel  # noqa: PLC0415  for these only

    kernel = Kernel.of(op, shape, after)
    ends = (replace(kernel.frame, kernel=end) for end in (kernel.entries.lo, kernel.entries.hi))
    low, high = (end.matrix().T if kernel.adjoint else end.matrix() for end in ends)
    return matrix(Interval(low, high))


def _average(op: AveragePool, shape: Shape, after: Shape) -> Matrix:
    """The sum over windows, each channel by itself, divided by the number of terms."""
    from lipcert.core.norms.convolution import Convolution  # noqa: PLC0415  for these only

    ones = np.ones((shape[1], 1, *op.window.taps))
    total = Convolution(ones, shape[2:], op.window, shape[1]).matrix()
    if total.shape[0] != math.prod(after) or shape[0] != 1:
        raise ValueError("an average does not fit its shapes")
    counts = total.sum(axis=1, keepdims=True)
    if op.counts_padding:
        counts[:] = math.prod(op.window.taps)
    return _divided(total, np.maximum(counts, 1.0))


def _sum(op: ReduceSum, shape: Shape, after: Shape) -> Matrix:
    """1, or 1 divided by the number of terms, where an entry belongs to a sum."""
    targets = np.broadcast_to(np.arange(math.prod(after)).reshape(after), shape).ravel()
    total = np.zeros((math.prod(after), targets.size))
    total[targets, np.arange(targets.size)] = 1.0
    terms = math.prod(shape[axis] for axis in op.axes) if op.mean else 1
    return _divided(total, np.full((1, 1), float(terms)))


def _centre(axes: Shape, shape: Shape) -> Matrix:
    """I − 11ᵀ/m on each block of m entries: two roundings each."""
    kept = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
    blocks = np.broadcast_to(np.arange(math.prod(kept)).reshape(kept), shape).ravel()
    together = blocks[:, np.newaxis] == blocks
    share = 1.0 / max(math.prod(shape[axis] for axis in axes), 1)
    centre = np.eye(blocks.size) - np.where(together, share, 0.0)
    return _around(centre)


def _move(sources: IndexArray, size: int, after: Shape) -> Link:
    """1 where an entry comes from."""
    if np.array_equal(sources, np.arange(size)):
        return Diagonal(exact(np.ones(size)))
    entries = np.zeros((math.prod(after), size))
    inside = np.flatnonzero(sources >= 0)
    entries[inside, sources[inside]] = 1.0
    return Matrix(exact(entries))


def _divided(total: Array, counts: Array) -> Matrix:
    """Entries 0 or 1, divided by counts: one rounding each."""
    return _around(total / counts)


def _around(centre: Array) -> Matrix:
    radius = np.abs(centre) * _ROUNDING
    return Matrix(Interval(centre - radius, centre + radius))
