"""Moves before a convolution and averages behind it, folded into its kernel, as in `compose`."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from lipcert.core.arithmetic import round_down, round_up
from lipcert.core.interval import Interval
from lipcert.core.norms.kernels import Kernel
from lipcert.core.program import IndexArray, Shape, Window


def behind(kernel: Kernel, lines: tuple[IndexArray, ...], size: Shape) -> Kernel | None:
    """T_K of an input of another size whose entries were moved along each axis, once."""
    frame = kernel.frame
    if kernel.adjoint or frame.moved or tuple(map(len, lines)) != frame.size:
        return None
    return replace(kernel, frame=replace(frame, size=size, moved=lines))


def averaged(kernel: Kernel, pool: Window) -> Kernel | None:
    """Averages of T_K x over windows; None where they read padding.

    Proof: average p reads outputs p·s' + e·d' and hence places (p·s' + e·d')·s + t·d: tap
    (e·d'·s + t·d)/g of a kernel with stride s'·s and dilation g, a common divisor of d's and d.
    """
    frame = kernel.frame
    last = zip(pool.outputs, pool.strides, pool.taps, pool.dilations, strict=True)
    ends = [(n - 1) * s + (t - 1) * d for n, s, t, d in last]
    fits = all(end < n for end, n in zip(ends, frame.window.outputs, strict=True))
    if kernel.adjoint or any(pool.before) or not fits:
        return None
    window = _joined(frame.window, pool)
    share = Fraction(1, math.prod(pool.taps))
    part = kernel.entries * Interval(
        np.array(round_down(share)), np.array(round_up(share))
    ).broadcast(kernel.entries.shape)
    lo = np.zeros((*kernel.entries.shape[:2], *window.taps))
    hi = lo.copy()
    for shifts in itertools.product(*map(range, pool.taps)):
        where = (slice(None), slice(None), *_places(frame.window, pool, window, shifts))
        total = Interval(lo[where], hi[where]) + part
        lo[where], hi[where] = total.lo, total.hi
    return replace(kernel, entries=Interval(lo, hi), frame=replace(frame, kernel=lo, window=window))


def _joined(first: Window, pool: Window) -> Window:
    """The window of averages of a convolution."""
    steps = [s * d for s, d in zip(first.strides, pool.dilations, strict=True)]
    dilations = tuple(math.gcd(*pair) for pair in zip(steps, first.dilations, strict=True))
    rows = zip(steps, pool.taps, first.dilations, first.taps, dilations, strict=True)
    taps = tuple((s * (e - 1) + d * (t - 1)) // g + 1 for s, e, d, t, g in rows)
    strides = tuple(s * p for s, p in zip(first.strides, pool.strides, strict=True))
    return Window(taps, strides, dilations, first.before, pool.outputs)


def _places(first: Window, pool: Window, joined: Window, shifts: Shape) -> list[slice]:
    """The taps of the joined window through which output `shifts` of an average reads."""
    slices = []
    for axis, shift in enumerate(shifts):
        unit = joined.dilations[axis]
        start = shift * pool.dilations[axis] * first.strides[axis] // unit
        step = first.dilations[axis] // unit
        slices.append(slice(start, start + step * (first.taps[axis] - 1) + 1, step))
    return slices
