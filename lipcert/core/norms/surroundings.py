"""Moves before a convolution and averages behind it, folded into its kernel, as in `compose`."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from lipcert.core.interval import Interval, enclosed
from lipcert.core.line import NotProved
from lipcert.core.norms.convolution import Kernel
from lipcert.core.program import IndexArray, Shape
from lipcert.core.window_kinds import Window


def lines_of(sources: IndexArray, shape: Shape) -> tuple[IndexArray, ...]:
    """For each axis behind the first two, where its positions come from, −1 for 0.

    y[0, c, p, q] = x[0, c, lines[0][p], lines[1][q]], or 0 where one of these is −1; x is of the
    given shape, y of that of `sources`. Padding, slicing and repetition of rows are such moves.
    Proof: lines are read off the first channel, and all of `sources` is compared with them.
    """
    if len(shape) != sources.ndim or sources.shape[:2] != shape[:2] or shape[0] != 1:
        raise NotProved("a move changes channels, or is of several images")
    size = shape[2:]
    first = sources[0, 0]
    known = (first >= 0) & (first < math.prod(size))
    places = np.unravel_index(np.where(known, first, 0), size)
    lines = []
    for axis, place in enumerate(places):
        others = tuple(other for other in range(len(size)) if other != axis)
        lines.append(np.where(known, place, -1).max(axis=others, initial=-1).astype(np.int64))
    channels = np.arange(shape[1], dtype=np.int64) * math.prod(size)
    expected, inside = np.zeros((), dtype=np.int64), np.ones((), dtype=np.bool_)
    for line, n in zip(lines, size, strict=True):
        expected = expected[..., None] * n + line
        inside = inside[..., None] & (line >= 0)
    table = np.where(inside, channels.reshape(-1, *[1] * len(size)) + expected, -1)
    if not np.array_equal(sources[0], table):
        raise NotProved("a move is not one along each axis")
    return tuple(lines)


def behind(kernel: Kernel, lines: tuple[IndexArray, ...], size: Shape) -> Kernel:
    """T_K of an input of another size whose entries were moved along each axis, once."""
    frame = kernel.frame
    fits = not frame.moved and tuple(map(len, lines)) == frame.size
    if kernel.is_matrix or kernel.adjoint or not fits:
        raise NotProved("a move before a kernel does not fit it")
    return replace(kernel, frame=replace(frame, size=size, moved=lines))


def averaged(kernel: Kernel, pool: Window) -> Kernel:
    """Averages of T_K x over windows; raise NotProved where they read padding.

    Proof: average p reads outputs p·s' + e·d' and hence places (p·s' + e·d')·s + t·d: tap
    (e·d'·s + t·d)/g of a kernel with stride s'·s and dilation g, a common divisor of d's and d.
    """
    frame = kernel.frame
    last = zip(pool.outputs, pool.strides, pool.taps, pool.dilations, strict=True)
    ends = [(n - 1) * s + (t - 1) * d for n, s, t, d in last]
    fits = all(end < n for end, n in zip(ends, frame.window.outputs, strict=True))
    if kernel.is_matrix or kernel.adjoint or any(pool.before) or not fits:
        raise NotProved("averages behind a kernel do not fit it")
    window = _joined(frame.window, pool)
    share = enclosed(Fraction(1, math.prod(pool.taps)))
    part = kernel.entries * share.broadcast(kernel.entries.shape)
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
