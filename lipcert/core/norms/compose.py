"""Affine steps before, behind and beside a convolution, folded into its kernel.

T_K is the convolution by K, for every K in the interval kernel that enters; what leaves holds the
kernel of the composed map. For a transposed convolution, all of it in the adjoint: what stands
before it acts on the outputs of the kernel.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.norms.convolution import Convolution
from lipcert.core.norms.kernels import Kernel
from lipcert.core.program import IndexArray


def scaled(kernel: Kernel, factors: Interval, outputs: bool) -> Kernel | None:
    """Factors [channels] on the outputs of the map, or on its inputs; None if they do not fit.

    Proof: diag(b)·T_K has the kernel b_o·K[o, i], T_K·diag(a) the kernel K[o, i]·a_i, i counted
    through all groups.
    """
    groups, entries = kernel.frame.groups, kernel.entries
    rows, inputs, *taps = entries.shape
    on_rows = outputs is not kernel.adjoint
    if factors.shape != ((rows,) if on_rows else (inputs * groups,)):
        return None
    split = (groups, rows // groups, inputs, *taps)
    ones = [1] * len(taps)
    shape = (groups, rows // groups, 1, *ones) if on_rows else (groups, 1, inputs, *ones)
    product = _reshaped(entries, split) * _reshaped(factors, shape).broadcast(split)
    return replace(kernel, entries=_reshaped(product, entries.shape))


def plus_identity(kernel: Kernel, through: int, around: int) -> Kernel | None:
    """through·T_K x + around·x for signs ±1; None where no tap fits.

    Proof: the identity is a convolution by 1 at a tap through which every output reads the entry
    of its own place, for the channel of the output within its group.
    """
    rows, inputs = kernel.entries.shape[:2]
    own = [_own_tap(kernel.frame, axis) for axis in range(len(kernel.frame.size))]
    taps = tuple(tap for tap in own if tap is not None)
    if rows != inputs * kernel.frame.groups or len(taps) != len(own) or {through, around} - {1, -1}:
        return None
    channels = np.arange(rows, dtype=np.int64)
    where: tuple[IndexArray, ...] = (channels, channels % inputs, *map(np.array, taps))
    ends = np.full(rows, float(around))
    signed = kernel.entries if through > 0 else -kernel.entries
    lo, hi = signed.lo.copy(), signed.hi.copy()
    total = Interval(lo[where], hi[where]) + Interval(ends, ends)
    lo[where], hi[where] = total.lo, total.hi
    return replace(kernel, entries=Interval(lo, hi))


def _own_tap(frame: Convolution, axis: int) -> int | None:
    """A tap through which output o reads entry o, for every entry."""
    if frame.window.outputs[axis] != frame.size[axis]:
        return None
    own = (frame.reads(axis) == np.arange(frame.size[axis])[:, None]).all(axis=0)
    return int(np.argmax(own)) if own.any() else None


def _reshaped(interval: Interval, shape: tuple[int, ...]) -> Interval:
    return Interval(interval.lo.reshape(shape), interval.hi.reshape(shape))
