"""LinearMap: the linear maps whose operator norm the rules need, described without a graph.

What enters: a weight operand and how it is applied. What leaves: a description that `scope.py`
bounds, either from the weight's numbers or from a constraint that the weight obeys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lipcert.norms.geometry import Geometry
from lipcert.operand import Operand

__all__ = ["ConvMap", "DenseMap", "LinearMap"]


@final
@dataclass(frozen=True, slots=True)
class DenseMap:
    """x ↦ W x on the last axis, the same at every position. weight: [out, in]."""

    weight: Operand


@final
@dataclass(frozen=True, slots=True)
class ConvMap:
    """Zero-padded (grouped, strided, dilated) cross-correlation, or its adjoint (same norm).

    weight: [out, in/groups, *taps], one `Window` per spatial dimension.
    """

    weight: Operand
    geometry: Geometry
    groups: int = 1


LinearMap = DenseMap | ConvMap
