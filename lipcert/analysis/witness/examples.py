"""Admissible examples that go as far as possible in given directions.

What enters: the facts of the input. What leaves: points of its box and ball. Invariant: what
`admitted` returns lies in both, whatever was rounded before.
"""

from __future__ import annotations

import numpy as np

from lipcert.facts import ValueFacts
from lipcert.upper import FloatArray, norm

_HALVINGS = 30
_INWARD = 1e-12


def farthest(directions: FloatArray, domain: ValueFacts) -> FloatArray:
    """For each d of [examples, *shape]: nearly the x of box and ball with the largest ⟨d, x⟩.

    Such an x is d/m clipped to the box, with the least m for which it lies in the ball (the
    conditions of Karush, Kuhn and Tucker); m is found by bisection of its logarithm.
    """
    flat = directions.reshape(len(directions), -1)
    length = np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    unit = flat / length
    box = domain.box.broadcast(domain.shape)
    lo, hi = box.lo.reshape(-1), box.hi.reshape(-1)
    radius = domain.norm.value.value
    low, high = np.full((2, len(flat), 1), np.log(max(radius, 1e-300)))
    low, high = low - 1.0, high + 12.0  # logarithms of 1/m: inside and outside, or at a vertex
    point: FloatArray = np.clip(unit * radius, lo, hi)
    if np.array_equal(point, unit * radius):
        return point.reshape(directions.shape)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        point = np.clip(unit * np.exp(middle), lo, hi)
        inside = np.linalg.norm(point, axis=1, keepdims=True) <= radius
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    point = np.clip(unit * np.exp(low), lo, hi)
    return point.reshape(directions.shape)


def admitted(x: FloatArray, domain: ValueFacts) -> FloatArray | None:
    """This example, moved inward by a hair, if it is admissible beyond doubt."""
    box = domain.box.broadcast(domain.shape)
    nearest_to_zero = np.clip(0.0, box.lo, box.hi)
    moved = np.clip(nearest_to_zero + (1.0 - _INWARD) * (x - nearest_to_zero), box.lo, box.hi)
    return moved if norm(moved) <= domain.norm.value else None
