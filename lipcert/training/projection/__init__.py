"""Projection: weights back within their constraints after each step, certified and fast.

Invariant: no estimate is ever taken for a bound; estimates only choose what is to be proved.
"""

from lipcert.training.projection.projector import Projector

__all__ = ["Projector"]
