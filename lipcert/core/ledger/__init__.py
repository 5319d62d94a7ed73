"""Ledger: the assumptions of a certificate, as typed premises."""

from dataclasses import dataclass
from typing import Annotated, Final

from lipcert.core.codec import Limit

CHECKED: Final = "checked"
DECLARED: Final = "declared"


EVALUATION: Final = "A-EVAL"
DROPOUT: Final = "Dropout"
MODAL_OPERATORS: Final = frozenset({"BatchNormalization", DROPOUT})
"""ONNX operators that compute something else in train mode."""


@dataclass(frozen=True, slots=True, order=True)
class EvalLayer:
    """A layer of A-EVAL, which would compute something else in train mode: operator and name.

    The checker sees some in the file; a certificate names further ones of which an exporter left
    traces.
    """

    kind: Annotated[str, Limit("an operator with a train mode", MODAL_OPERATORS.__contains__)]
    name: str


LAYERS: Final = "A-LAYERS"
SAMPLING: Final = "A-SAMPLING"
STEPWISE: Final = "A-STEPWISE"
