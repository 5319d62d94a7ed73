"""Ledger: the assumptions of a certificate, as typed premises."""

from typing import Final, TypeAlias

CHECKED: Final = "checked"
DECLARED: Final = "declared"


EVALUATION: Final = "A-EVAL"
DROPOUT: Final = "Dropout"
MODAL_OPERATORS: Final = frozenset({"BatchNormalization", DROPOUT})
"""ONNX operators that compute something else in train mode."""
EvalLayer: TypeAlias = tuple[str, str]
"""The operator of a layer, and its name."""

LAYERS: Final = "A-LAYERS"
SAMPLING: Final = "A-SAMPLING"
STEPWISE: Final = "A-STEPWISE"
