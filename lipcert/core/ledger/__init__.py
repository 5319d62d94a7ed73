"""The ledger: what a certificate assumes, as typed premises."""

from collections.abc import Mapping
from typing import Final, TypeAlias

from lipcert.core.certificate import Assumption

CHECKED: Final = "checked"
DECLARED: Final = "declared"


def declared(name: str, data: Mapping[str, object] | None = None) -> Assumption:
    """What the checker cannot establish. data: where premises are not read from it."""
    return Assumption(name, DECLARED, data or {})


EVALUATION: Final = "A-EVAL"
DROPOUT: Final = "Dropout"
MODAL_OPERATORS: Final = frozenset({"BatchNormalization", DROPOUT})
"""operators of ONNX that stand for something else in train mode"""
EvalLayer: TypeAlias = tuple[str, str]
"""its operator, and its name"""

LAYERS: Final = "A-LAYERS"
SAMPLING: Final = "A-SAMPLING"
STEPWISE: Final = "A-STEPWISE"
