"""Slopes: how much constants change with the tensors of the file that they are computed from.

All that is returned here holds at the numbers of the file, and says nothing of others. Where a
function has no derivative it is one of Clarke, which is what frameworks return: of |x|, of a
maximum, of a norm at 0. Proof: the chain rule, and ‖Σ_k J_k‖ ≤ Σ_k ‖J_k‖ for a tensor that enters
in several ways; norms of Jacobians are those of linear maps between Euclidean spaces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import exact
from lipcert.core.lower.values import Array, Constant
from lipcert.core.program import PLUS, Shape


def chained(*parts: tuple[Constant, float]) -> Mapping[str, float]:
    """Of a function of constants, each with a bound of the norm of its Jacobian there."""
    found: dict[str, float] = {}
    for constant, gain in parts:
        for name, linear in constant.sources.items():
            if name != PLUS:
                slope = linear if linear < math.inf else constant.slopes.get(name, math.inf)
                found[name] = add_up(found.get(name, 0.0), multiply_up(gain, slope))
    return {name: slope for name, slope in found.items() if slope < math.inf}


def repeated(constant: Constant, shape: Shape) -> float:
    """Of the repetition of a constant to a shape: √copies."""
    return sqrt_up(float(math.prod(shape) // max(constant.lo.size, 1)))


def met(own: Shape, other: Array, shape: Shape) -> float:
    """Of x ↦ x·other entry by entry, both repeated to `shape`, for x of the shape `own`.

    Proof: an entry of x meets those of `other` in whose places it is repeated, and no other entry
    does: the squared norm is the largest sum of their squares. other: magnitudes.
    """
    rank = len(shape)
    padded = (1,) * (rank - len(own)) + own
    axes = [axis for axis in range(rank) if padded[axis] == 1]
    places = np.broadcast_to(other, shape)
    squares = (exact(places) * exact(places)).sum(tuple(axes))
    return sqrt_up(float(np.max(squares.hi, initial=0.0)))
