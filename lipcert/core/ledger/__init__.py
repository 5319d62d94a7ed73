"""The ledger: what a certificate assumes, as typed premises and in words."""

from __future__ import annotations

from lipcert.core.ledger.entries import (
    CHECKED,
    DECLARED,
    DROPOUT,
    EVALUATION,
    MODAL_OPERATORS,
    EvalLayer,
)
from lipcert.core.ledger.mechanism import (
    MECHANISMS,
    GradientClipping,
    Mechanism,
)
from lipcert.core.ledger.premises import Circumstances, Premises

__all__ = [
    "CHECKED",
    "DECLARED",
    "DROPOUT",
    "EVALUATION",
    "MECHANISMS",
    "MODAL_OPERATORS",
    "Circumstances",
    "EvalLayer",
    "GradientClipping",
    "Mechanism",
    "Premises",
]
