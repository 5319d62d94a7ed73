"""Bound how fast functions of constants change with the tensors that they are computed from.

Slopes hold only at the numbers of the file. Where a function has no derivative (|x|, a maximum, a
norm at 0), the derivative is one of Clarke's, which is what frameworks return. Proof: the chain
rule, and ‖Σ_k J_k‖ ≤ Σ_k ‖J_k‖ for a tensor that enters in several ways; norms of Jacobians are
those of linear maps between Euclidean spaces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lipcert.core.arithmetic import add_up, multiply_up, sqrt_up
from lipcert.core.interval import Interval, exact
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Array, Constant
from lipcert.core.program import PLUS, Shape
from lipcert.core.rules.activations import function

if TYPE_CHECKING:
    from lipcert.core.lower.blocks import Blocks


def _largest(gains: Array) -> float:
    return float(np.max(gains, initial=0.0))


def image_of(known: Interval, name: str, *numbers: float) -> Interval:
    """Enclose a function of numbers that are given as intervals."""
    return function(name, numbers).image(known)


def image_of_constant(value: Constant, name: str, *numbers: float) -> Constant:
    """Return a function of every entry of a constant, with its slopes."""
    value.check_fixed()
    if not value.is_float:
        raise Unsupported("a function of whole numbers")
    known = Interval(value.lo, value.hi)
    image = image_of(known, name, *numbers)
    high = image.lo if np.array_equal(image.lo, image.hi) else image.hi
    sources = dict.fromkeys(value.sources, math.inf)
    found = Constant(image.lo, high, sources, value.place)
    if not sources:
        return found
    try:
        return of_entries(found, value, function(name, numbers).derivative(known))
    except Unsupported:
        return found


def of_entries(found: Constant, value: Constant, derivative: Interval) -> Constant:
    """Return `found`, a function of every entry of `value`, with slopes from its derivatives."""
    passed = {}
    if value.blocks:
        from lipcert.core.lower.blocks import passed_on  # noqa: PLC0415  for such alone

        passed = {key: passed_on(item, derivative) for key, item in value.blocks.items()}
    return with_blocks(found, chained((value, _largest(derivative.magnitude()))), passed)


def with_blocks(
    found: Constant, slopes: Mapping[str, float], blocks: Mapping[str, Blocks]
) -> Constant:
    """Return `found` with these slopes, or with smaller ones that its blocks give."""
    least = dict(slopes)
    blocks = {name: item for name, item in blocks.items() if np.isfinite(item.gains).all()}
    for name, item in blocks.items():
        least[name] = min(_largest(item.gains), least.get(name, math.inf))
    return replace(found, slopes=least, blocks=blocks)


def chained(*parts: tuple[Constant, float]) -> Mapping[str, float]:
    """Return the slopes of a function of constants, from bounds of the norm of each Jacobian."""
    found: dict[str, float] = {}
    for constant, gain in parts:
        for name, linear in constant.sources.items():
            if name != PLUS:
                slope = linear if linear < math.inf else constant.slopes.get(name, math.inf)
                found[name] = add_up(found.get(name, 0.0), multiply_up(gain, slope))
    return {name: slope for name, slope in found.items() if slope < math.inf}


def repeated(constant: Constant, shape: Shape) -> float:
    """Return the norm of repeating a constant to a shape: √copies."""
    return sqrt_up(float(math.prod(shape) // max(constant.lo.size, 1)))


def met(own: Shape, other: Array, shape: Shape) -> float:
    """Bound the norm of x ↦ x·other, both repeated to `shape`, for x of the shape `own`.

    Proof: an entry of x meets those of `other` in whose places it is repeated, and no other entry
    does: the squared norm is the largest sum of their squares. other: magnitudes.
    """
    return sqrt_up(_largest(squares_met(own, other, shape)))


def squares_met(own: Shape, other: Array, shape: Shape) -> Array:
    """Return, for each entry of x as in `met`, an upper bound of the sum of squares it meets."""
    rank = len(shape)
    padded = (1,) * (rank - len(own)) + own
    axes = [axis for axis in range(rank) if padded[axis] == 1]
    places = np.broadcast_to(other, shape)
    return (exact(places) * exact(places)).sum(tuple(axes)).hi
