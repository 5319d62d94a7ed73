"""Window multiplicity."""

from __future__ import annotations

from lipcert.norms.geometry import Geometry
from lipcert.upper import Upper

__all__ = ["window_multiplicity"]


def window_multiplicity(geometry: Geometry) -> Upper:
    """kappa."""
    raise RuntimeError
