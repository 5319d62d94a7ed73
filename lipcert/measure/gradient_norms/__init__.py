"""Exact per-example gradient norms, without per-example gradients where these are not needed.

Every norm comes with a rigorous bound of its rounding error.
"""

from lipcert.measure.gradient_norms.engine import MEMORY_LIMIT, NormEngine

__all__ = ["MEMORY_LIMIT", "NormEngine"]
