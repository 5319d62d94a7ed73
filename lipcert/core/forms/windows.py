"""Jacobians of convolutions and averages over windows, written out as matrices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lipcert.core.forms.links import Matrix, divided, matrix_within
from lipcert.core.interval import Interval
from lipcert.core.norms.convolution import Convolution, Kernel
from lipcert.core.program import AveragePool, Conv, Shape


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
