"""Projection: weights back within their constraints after each step, certified and fast.

What enters: a graph, the settings that declare constraints, and the live tensors. What leaves:
tensors whose numbers, taken as real ones, obey the constraints, and certified norms of them.
Invariant: no estimate is ever taken for a bound; estimates only choose what is to be proved.
"""

from lipcert.training.projection.projector import Projector

__all__ = ["Projector"]
