"""The ladder of certified operator norms: several sound bounds of one map, the smallest wins.

What enters: a dense or convolutional map with exact weights and the work a bound may cost. What
leaves: a `Bound` naming the rung that gave it. Every rung is sound by itself, so which ones are
tried is only a question of effort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, final

import numpy as np

from lipcert.facts import Bound, no_bound, tightest
from lipcert.norms.dense import dense_norm
from lipcert.norms.explicit import explicit_cost, explicit_norm
from lipcert.norms.geometry import Geometry
from lipcert.norms.laurent import laurent_norm
from lipcert.norms.linear_map import ConvMap, DenseMap, LinearMap
from lipcert.norms.polyphase import live_kernels, polyphase
from lipcert.norms.windows import largest_overlap
from lipcert.upper import ONE, FloatArray, Upper, gamma, norm

__all__ = ["RULES", "Tier", "operator_norm"]


class Tier(Enum):
    """How much work a bound may cost."""

    QUICK = "quick"
    FAST = "fast"
    TIGHT = "tight"


@final
@dataclass(frozen=True, slots=True)
class _Effort:
    """Limits in floating-point operations: per dense matrix, explicit Gram matrix, and search."""

    dense: float
    explicit: float
    search: float


_EFFORTS: Final[Mapping[Tier, _Effort]] = MappingProxyType(
    {
        Tier.QUICK: _Effort(dense=3e10, explicit=2e8, search=0.0),
        Tier.FAST: _Effort(dense=3e12, explicit=2e9, search=1e12),
        Tier.TIGHT: _Effort(dense=1e13, explicit=3e11, search=1e13),
    }
)
