"""Broadcasting of per-example values: how often an entry is repeated, and norms of its partners.

What enters: per-example shapes and facts that numpy broadcasting combines. What leaves: exact
repetition counts, and the norm of the slice of one value that meets a single entry of another.
The example axis of `evaluate` never takes part in broadcasting.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from lipcert.core.program import Shape
from lipcert.upper import FloatArray, Upper


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The common shape; ValueError where the shapes do not fit."""
    return np.broadcast_shapes(*shapes)


def root_of(count: int) -> Upper:
    """√count, rounded up."""
    return Upper.of_fraction(Fraction(count)).sqrt()


def aligned(array: FloatArray, rank: int) -> FloatArray:
    """An array [examples, *shape] with unit axes after the first, so that shape has this rank."""
    examples, *shape = array.shape
    return array.reshape(examples, *[1] * (rank - len(shape)), *shape)
