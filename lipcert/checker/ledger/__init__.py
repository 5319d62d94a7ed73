"""The ledger: what a certificate assumes, as typed premises and in words."""

from __future__ import annotations

from lipcert.checker.ledger.entries import CHECKED, DECLARED
from lipcert.checker.ledger.evaluation import DROPOUT, EVALUATION, MODAL_OPERATORS, EvalLayer
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
    "DROPOUT",
    "EVALUATION",
    "MECHANISMS",
    "MODAL_OPERATORS",
    "BackpropagationClip",
    "Circumstances",
    "EvalLayer",
    "GradientClip",
    "LayerEnds",
    "Premises",
    "Run",
]
