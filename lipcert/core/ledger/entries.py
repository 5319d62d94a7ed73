"""Entries of the ledger that no number stands in, the names of others, and words of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from lipcert.core.certificate import Assumption

CHECKED: Final = "checked"
DECLARED: Final = "declared"
LossParameter: TypeAlias = tuple[str, float | str]


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
