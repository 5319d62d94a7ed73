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
from lipcert.core.interval import Interval
from lipcert.core.lower.values import Array, Constant
from lipcert.core.program import PLUS, Shape

if TYPE_CHECKING:
    from lipcert.core.lower.blocks import Blocks


def _largest(gains: Array) -> float:
    return float(np.max(gains, initial=0.0))


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
