"""Jacobians of linear steps besides matrices, each between values of two shapes, in row-major
order."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lipcert.core.forms.links import Diagonal, Link, Matrix, diagonal, matrix
from lipcert.core.interval import Array, Interval, exact
from lipcert.core.line import NotProved
from lipcert.core.program import Move, Shape

if TYPE_CHECKING:  # which a program that lacks them does not load
    from lipcert.core.kinds import BatchNorm, Centre
    from lipcert.core.token_kinds import ReduceSum, Scale, Shift
    from lipcert.core.window_kinds import AveragePool, Conv

_ROUNDING: Final = 2.0**-50
"""more than two roundings and that of an end, relative to an entry"""


def factors(op: Scale, shape: Shape, _: Shape) -> Link:
    """The factor of each entry."""
    return diagonal(Interval(op.factor.lo, op.factor.hi), shape)


def channels(op: BatchNorm, shape: Shape, _: Shape) -> Link:
    """The factor of each entry is that of its channel."""
    found = Interval(op.scale.lo, op.scale.hi) * Interval(op.inverse.lo, op.inverse.hi)
    per_channel = (-1, *[1] * (len(shape) - 2))
    return diagonal(found.moved(lambda end: end.reshape(per_channel)), shape)


def unit(_: Shift, shape: Shape, __: Shape) -> Link:
    """1 at every entry."""
    return diagonal(exact(1.0), shape)


def convolution(op: Conv, shape: Shape, after: Shape) -> Matrix:
    """A transposed one is the transpose of what is written out."""
    from lipcert.core.norms.convolution import Kernel  # noqa: PLC0415  for these only

    kernel = Kernel.of(op, shape, after)
    found = kernel.entries.moved(lambda end: replace(kernel.frame, kernel=end).matrix())
    return matrix(found.transposed() if kernel.adjoint else found)


def averages(op: AveragePool, shape: Shape, after: Shape) -> Matrix:
    """The sum over windows, each channel by itself, divided by the number of terms."""
    from lipcert.core.norms.convolution import Convolution  # noqa: PLC0415  for these only

    ones = np.ones((shape[1], 1, *op.window.taps))
    total = Convolution(ones, shape[2:], op.window, shape[1]).matrix()
    if total.shape[0] != math.prod(after) or shape[0] != 1:
        raise NotProved("an average does not fit its shapes")
    counts = total.sum(axis=1, keepdims=True)
    if op.counts_padding:
        counts[:] = math.prod(op.window.taps)
    return _divided(total, np.maximum(counts, 1.0))


def sums(op: ReduceSum, shape: Shape, after: Shape) -> Matrix:
    """1, or 1 divided by the number of terms, where an entry belongs to a sum."""
    targets = np.broadcast_to(np.arange(math.prod(after)).reshape(after), shape).ravel()
    total = np.zeros((math.prod(after), targets.size))
    total[targets, np.arange(targets.size)] = 1.0
    terms = math.prod(shape[axis] for axis in op.axes) if op.mean else 1
    return _divided(total, np.full((1, 1), float(terms)))


def centring(op: Centre, shape: Shape, _: Shape) -> Matrix:
    """I − 11ᵀ/m on each block of m entries: two roundings each."""
    axes = op.axes
    kept = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
    blocks = np.broadcast_to(np.arange(math.prod(kept)).reshape(kept), shape).ravel()
    together = blocks[:, np.newaxis] == blocks
    share = 1.0 / max(math.prod(shape[axis] for axis in axes), 1)
    centre = np.eye(blocks.size) - np.where(together, share, 0.0)
    return _around(centre)


def move(op: Move, shape: Shape, after: Shape) -> Link:
    """1 where an entry comes from."""
    sources, size = op.sources.ravel(), math.prod(shape)
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
