"""The ledger: what a certificate assumes, as typed premises and in words."""

from __future__ import annotations

from lipcert.checker.ledger.entries import CHECKED, DECLARED
from lipcert.checker.ledger.mechanism import (
    MECHANISMS,
    BackpropagationClip,
    GradientClip,
    LayerEnds,
)
from lipcert.checker.ledger.premises import Circumstances, Premises
from lipcert.checker.ledger.run import Run

__all__ = [
    "CHECKED",
    "DECLARED",
    "MECHANISMS",
    "BackpropagationClip",
    "Circumstances",
    "GradientClip",
    "LayerEnds",
    "Premises",
    "Run",
]
