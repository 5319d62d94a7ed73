"""The ledger: what a certificate assumes, as typed premises and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from lipcert.core.certificate import Assumption

CHECKED: Final = "checked"
DECLARED: Final = "declared"
LossParameter: TypeAlias = tuple[str, float | str]


def declared(name: str, text: str, data: Mapping[str, object] | None = None) -> Assumption:
    """What the checker cannot establish. data: where premises are not read from it."""
    return Assumption(name, DECLARED, text, data or {})


def admitted(norm: float | None, box: tuple[float, float] | None) -> str:
    """What is known of an input, in words; nothing where it may be anything."""
    parts = []
    if norm is not None:
        parts.append(f"a Euclidean norm of at most {norm!r}")
    if box is not None:
        low, high = box
        parts.append(f"entries between {low!r} and {high!r}")
    return " and ".join(parts)


def described(kind: str, parameters: Sequence[LossParameter], output: str = "") -> str:
    """A loss in words. output: of this one among several."""
    numbers = ", ".join(f"{name} = {value}" for name, value in parameters)
    text = f"{kind} of the output {output}" if output else kind
    text = f"{text} with {numbers}" if numbers else text
    reduction = dict(parameters).get("per_token")
    if reduction is None:
        return text
    return f"the {reduction} over all tokens, those without label (-100) as 0, of {text}"


EVALUATION: Final = "A-EVAL"
DROPOUT: Final = "Dropout"
MODAL_OPERATORS: Final = frozenset({"BatchNormalization", DROPOUT})
"""operators of ONNX that stand for something else in train mode"""
EvalLayer: TypeAlias = tuple[str, str]
"""its operator, and its name"""

LAYERS: Final = "A-LAYERS"
SAMPLING: Final = "A-SAMPLING"
STEPWISE: Final = "A-STEPWISE"
