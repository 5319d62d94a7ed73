"""Entries of the ledger that no number stands in, and the names of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from lipcert.core.certificate import Assumption

CHECKED: Final = "checked"
DECLARED: Final = "declared"


def declared(name: str, text: str, data: Mapping[str, object] | None = None) -> Assumption:
    """What the checker cannot establish."""
    return Assumption(name, DECLARED, text, data or {})


def examples(*, proved: bool, in_eval_mode: bool) -> Assumption:
    """Whether the model itself keeps the examples of a batch apart."""
    if proved:
        mode = "In eval mode, examples" if in_eval_mode else "Examples"
        text = f"{mode} of a batch do not influence each other, for batches of every size."
        return Assumption("A-PERSAMPLE", CHECKED, text, {})
    text = "The file computes one example at a time, and training applies it to each separately."
    return declared("A-PERSAMPLE", text)


def frozen(tensors: tuple[str, ...]) -> Assumption:
    """What takes part and is not trained."""
    text = f"{len(tensors)} tensors of the file are constants that training does not change."
    return declared("A-FROZEN", text, {"tensors": list(tensors)})


PROJECTION: Final = declared(
    "A-PROJ", "Training holds every trained tensor within its constraint at every step."
)
FIXED: Final = declared("A-POINT", "At every step of the run the weights are those of the file.")
ACCOUNTING: Final = declared(
    "A-EPSILON",
    "The accountant that found epsilon is right: the checker did not find as small a one.",
)
RANDOMNESS: Final = declared(
    "A-RNG", "The noise is Gaussian, fresh and independent at every step, and kept secret."
)
ARITHMETIC: Final = declared(
    "A-NUMERIC", "Real arithmetic: the rounding of the training run is not included."
)

EVALUATION: Final = "A-EVAL"
DROPOUT: Final = "Dropout"
MODAL_OPERATORS: Final = frozenset({"BatchNormalization", DROPOUT})
"""operators of ONNX that stand for something else in train mode"""
EvalLayer: TypeAlias = tuple[str, str]
"""its operator, and its name"""

SAMPLING: Final = "A-SAMPLING"
STEPWISE: Final = "A-STEPWISE"
