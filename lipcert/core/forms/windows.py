"""Jacobians of convolutions and averages over windows: written out as matrices, and tap by tap."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lipcert.core.forms.links import Matrix, divided, matrix_within
from lipcert.core.interval import Interval, down, exact, up
from lipcert.core.norms.convolution import Convolution, Kernel
from lipcert.core.program import AveragePool, Conv, IndexArray, Shape
from lipcert.core.rules.window_reads import windows_over
from lipcert.core.rules.windows import Axis, axes_of, convolution_axes


def over_windows(op: Conv | AveragePool, shape: Shape, after: Shape) -> Matrix | None:
    """The Jacobian of a step between values of two shapes; None where it is not known."""
    return _average(op, shape, after) if isinstance(op, AveragePool) else _conv(op, shape, after)


def _conv(op: Conv, shape: Shape, after: Shape) -> Matrix | None:
    """A transposed one is the transpose of what is written out."""
    kernel = Kernel.of(op, shape, after)
    ends = (replace(kernel.frame, kernel=end) for end in (kernel.entries.lo, kernel.entries.hi))
    low, high = (end.matrix().T if kernel.adjoint else end.matrix() for end in ends)
    return matrix_within(Interval(low, high))


def _average(op: AveragePool, shape: Shape, after: Shape) -> Matrix:
    """The sum over windows, each channel by itself, divided by the number of terms."""
    ones = np.ones((shape[1], 1, *op.window.taps))
    total = Convolution(ones, shape[2:], op.window, shape[1]).matrix()
    if total.shape[0] != math.prod(after) or shape[0] != 1:
        raise ValueError("an average does not fit its shapes")
    counts = total.sum(axis=1, keepdims=True)
    if op.counts_padding:
        counts[:] = math.prod(op.window.taps)
    return divided(total, np.maximum(counts, 1.0))


def rows_over_windows(
    rows: Interval, op: Conv | AveragePool, shape: Shape, after: Shape
) -> Interval | None:
    """rows·J for the Jacobian J of a step between two shapes; None for a transposed convolution.

    ValueError where the step does not fit its shapes.
    """
    if isinstance(op, AveragePool):
        return _averaged(rows, op, shape, after)
    return None if op.transposed else _convolved(rows, op, shape, after)


def _convolved(rows: Interval, op: Conv, shape: Shape, after: Shape) -> Interval:
    """Proof: gᵀJ at a position of channel i is the sum, over the taps through which a window p
    reads it, of Σ_o g_o(p)·K_oi(tap)."""
    axes = convolution_axes(op, shape, after)
    split = (op.groups, -1, op.weight.shape[1], math.prod(op.window.taps))
    kernel = Interval(op.weight.lo, op.weight.hi).moved(lambda end: end.reshape(split))
    above = rows.moved(lambda end: end.reshape(len(end), op.groups, -1, math.prod(after[2:])))

    def through(tap: int, used: IndexArray) -> Interval:
        own = kernel.moved(lambda end: np.swapaxes(end[..., tap], 1, 2))
        return own @ above.moved(lambda end: end[..., used])

    return _gathered((len(rows.lo), *split[::2], math.prod(shape[2:])), shape, axes, through)


def _averaged(rows: Interval, op: AveragePool, shape: Shape, after: Shape) -> Interval:
    """Each window divided by the number of its terms."""
    axes = axes_of(op.window, shape[2:])
    read = (windows_over(shape, axes) >= 0).sum(axis=1)
    terms = np.full_like(read, math.prod(op.window.taps)) if op.counts_padding else read
    above = rows.moved(lambda end: end.reshape(len(end), shape[1], -1))
    above = above * exact(terms).reciprocal()

    def through(tap: int, used: IndexArray) -> Interval:
        del tap
        return above.moved(lambda end: end[..., used])

    if math.prod(after[2:]) != len(terms):
        raise ValueError("an average does not fit its shapes")
    return _gathered((len(rows.lo), shape[1], math.prod(shape[2:])), shape, axes, through)


def _gathered(
    size: Shape,
    shape: Shape,
    axes: tuple[Axis, ...],
    through: Callable[[int, IndexArray], Interval],
) -> Interval:
    """What positions receive from windows, tap by tap: through one tap, no two read the same.

    size: of what is received, positions last. through: a tap, from the windows that read by it.
    """
    low, high = np.zeros(size), np.zeros(size)
    for tap, places in enumerate(windows_over(shape, axes).T):
        used = np.flatnonzero(places >= 0)
        part, where = through(tap, used), places[used]
        low[..., where] = down(low[..., where] + part.lo)
        high[..., where] = up(high[..., where] + part.hi)
    return Interval(low, high)
