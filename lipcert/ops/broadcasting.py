"""Broadcasting of per-example values: how often an entry is repeated, and norms of its partners.

What enters: per-example shapes and facts that numpy broadcasting combines. What leaves: exact
repetition counts, and the norm of the slice of one value that meets a single entry of another.
The example axis of `evaluate` never takes part in broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from lipcert.facts import Bound, Shape, ValueFacts, tightest
from lipcert.upper import FloatArray, Upper, row_norms


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The common shape; ValueError where the shapes do not fit."""
    return np.broadcast_shapes(*shapes)


def root_of(count: int) -> Upper:
    """√count, rounded up."""
    return Upper.of_fraction(Fraction(count)).sqrt()


def repetition_root(shape: Shape, into: Shape) -> Upper:
    """√m where broadcasting `shape` into `into` repeats every entry m times: its exact norm."""
    return root_of(math.prod(into) // max(math.prod(shape), 1))


def slice_norm(values: ValueFacts, partner: Shape, into: Shape) -> Bound:
    """Bound of the norm of the entries of `values` that meet one entry of a partner.

    Both broadcast into the shape `into`. Returns B with B ≥ max over partner entries of the
    Euclidean norm of the slice of `values` they are multiplied with.

    Proof: the slice runs over the axes along which the partner is repeated. Within it no entry
    of `values` occurs twice (an axis longer than 1 belongs to at least one of the two), so its
    norm is at most that of the whole value, and at most that of the box on the slice.
    """
    magnitude = values.box.magnitude()
    if not np.all(np.isfinite(magnitude)):
        return values.norm
    by_box = float(np.max(row_norms(_slices(magnitude, partner, into)), initial=0.0))
    if by_box == np.inf:
        return values.norm
    return tightest(values.norm, Bound(Upper(by_box), "slice.box_norm"))


def aligned(array: FloatArray, rank: int) -> FloatArray:
    """An array [examples, *shape] with unit axes after the first, so that shape has this rank."""
    examples, *shape = array.shape
    return array.reshape(examples, *[1] * (rank - len(shape)), *shape)


def _slices(magnitude: FloatArray, partner: Shape, into: Shape) -> FloatArray:
    """One row per partner entry, holding what that entry meets: [entries, repetitions]."""
    lengths = (1,) * (len(into) - len(partner)) + tuple(partner)
    kept = [axis for axis, length in enumerate(lengths) if length != 1]
    repeated = [axis for axis, length in enumerate(lengths) if length == 1]
    ordered = np.broadcast_to(magnitude, into).transpose(kept + repeated)
    return ordered.reshape(math.prod(into[axis] for axis in kept), -1)
