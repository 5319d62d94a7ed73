"""The ledger: what a certificate assumes, as typed premises and in words."""

from __future__ import annotations

from lipcert.core.ledger.entries import CHECKED, DECLARED
from lipcert.core.ledger.evaluation import DROPOUT, EVALUATION, MODAL_OPERATORS, EvalLayer
from lipcert.core.ledger.mechanism import (
    MECHANISMS,
    BackpropClipping,
    ClippedLayer,
    GradientClipping,
    LayerEnds,
    Mechanism,
)
from lipcert.core.ledger.premises import Circumstances, Premises
from lipcert.core.ledger.run import Run

__all__ = [
    "CHECKED",
    "DECLARED",
    "DROPOUT",
    "EVALUATION",
    "MECHANISMS",
    "MODAL_OPERATORS",
    "BackpropClipping",
    "Circumstances",
    "ClippedLayer",
    "EvalLayer",
    "GradientClipping",
    "LayerEnds",
    "Mechanism",
    "Premises",
    "Run",
]
