"""Moves of whole positions: the same in every channel, and along each axis by itself."""

from __future__ import annotations

import math

import numpy as np

from lipcert.core.program import IndexArray, Shape


def lines_of(sources: IndexArray, shape: Shape) -> tuple[IndexArray, ...] | None:
    """For each axis behind the first two, where its positions come from, −1 for 0; None if nowhere.

    y[0, c, p, q] = x[0, c, lines[0][p], lines[1][q]], or 0 where one of these is −1; x is of the
    given shape, y of that of `sources`. Padding, slicing and repetition of rows are such moves.
    Proof: lines are read off the first channel, and all of `sources` is compared with them.
    """
    if len(shape) != sources.ndim or sources.shape[:2] != shape[:2] or shape[0] != 1:
        return None
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
    return tuple(lines) if np.array_equal(sources[0], table) else None
