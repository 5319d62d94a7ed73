"""The ladder of certified operator norms. (Interface; see the rungs in this package.)"""

from __future__ import annotations

from enum import Enum

from lipcert.facts import Bound
from lipcert.norms.linear_map import LinearMap

__all__ = ["Tier", "operator_norm"]


class Tier(Enum):
    """How much work a bound may cost."""

    QUICK = "quick"
    FAST = "fast"
    TIGHT = "tight"


def operator_norm(linear_map: LinearMap, tier: Tier) -> Bound:
    """Certified upper bound of the spectral norm of the map."""
    raise RuntimeError
