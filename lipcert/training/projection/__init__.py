"""Projection: scale weights back within their constraints after each step, with proved norms.

Invariant: no estimate is ever used as a bound; estimates only choose what is to be proved.
"""

from lipcert.training.projection.projector import Projector

__all__ = ["Projector"]
