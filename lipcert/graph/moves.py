"""Moves: what becomes of the entries of one value in a node that only moves them."""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from lipcert.core.program import IndexArray, Move, Shape
from lipcert.graph.ir import Node, example


class Padding(Enum):
    """What stands around a value."""

    ZEROS = "zeros"
    WRAPPED = "wrapped"
    """the opposite side"""
    REPEATED = "repeated"
    """entries of the border or from within: reflected, say"""


def is_arrangement(node: Node) -> bool:
    """Whether every entry of the input stands in the output exactly once, and nothing else does."""
    if not isinstance(node.op, Move):
        return False
    sources = node.op.sources
    if sources.size != math.prod(node.given[0]) or sources.min(initial=0) < 0:
        return False
    return bool((np.bincount(sources.reshape(-1)) == 1).all())


def padding_of(node: Node) -> Padding | None:
    """What stands around x where y is x with further entries around it; None where it is not.

    Every entry stands where it stood, but for the widths of the padding.
    """
    if not isinstance(node.op, Move):
        return None
    return _padding(node.op.sources.reshape(node.shape), example(node.given[0]))


def _padding(sources: IndexArray, size: Shape) -> Padding | None:
    full = sources.shape
    if len(size) != len(full) or size == full or min(np.subtract(full, size)) < 0:
        return None
    own = np.arange(math.prod(size)).reshape(size)
    for start in np.argwhere(sources == 0):
        ends = list(zip(start, size, strict=True))
        if np.array_equal(sources[tuple(slice(a, a + n) for a, n in ends)], own):
            widths = [(a, all_ - a - n) for (a, n), all_ in zip(ends, full, strict=True)]
            for padding, padded in (
                (Padding.ZEROS, np.pad(own, widths, constant_values=-1)),
                (Padding.WRAPPED, np.pad(own, widths, mode="wrap")),
            ):
                if np.array_equal(padded, sources):
                    return padding
            return Padding.REPEATED
    return None
