"""The ledger: what a certificate assumes, as typed premises."""

from typing import Final, TypeAlias

CHECKED: Final = "checked"
DECLARED: Final = "declared"


EVALUATION: Final = "A-EVAL"
DROPOUT: Final = "Dropout"
MODAL_OPERATORS: Final = frozenset({"BatchNormalization", DROPOUT})
"""operators of ONNX that stand for something else in train mode"""
EvalLayer: TypeAlias = tuple[str, str]
"""its operator, and its name"""

LAYERS: Final = "A-LAYERS"
SAMPLING: Final = "A-SAMPLING"
STEPWISE: Final = "A-STEPWISE"
