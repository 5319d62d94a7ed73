"""The rule of each kind of step, by the file that holds it, which is loaded when it is asked for.

So a check rests on the rules of the steps in its program, and on no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Op
from lipcert.core.rules.base import Rule

FAMILIES: Final[Mapping[str, str]] = {
    "Activation": "activations",
    "Add": "sums",
    "Attention": "attention",
    "AveragePool": "averages",
    "BatchNorm": "factors",
    "Centre": "normalize",
    "Compare": "masks",
    "Concat": "sums",
    "Conv": "convolution",
    "CotangentClip": "clips",
    "Dense": "dense",
    "Divide": "products",
    "DivideByNorm": "normalize",
    "Embedding": "embedding",
    "InputClip": "clips",
    "LocalResponse": "responses",
    "LpPool": "lengths",
    "MaskedMean": "masks",
    "MatMul": "products",
    "MaxPool": "selections",
    "Move": "moves",
    "Multiply": "products",
    "Normalize": "normalize",
    "PRelu": "factors",
    "ReduceLogSumExp": "log_sum_exp",
    "ReduceMax": "selections",
    "ReduceNorm": "lengths",
    "ReduceSum": "sums",
    "Scale": "factors",
    "Shift": "factors",
    "Softmax": "softmax",
    "Sort": "selections",
}
"""the module of the class `<kind>Rule`"""


def rule_class(kind: type[Op]) -> type[Rule[Any]]:
    """The rule of a kind of step; Unsupported where there is none."""
    family = FAMILIES.get(kind.__name__)
    if family is None:
        raise Unsupported(f"there is no rule for {kind.__name__}")
    module = import_module(f"lipcert.core.rules.{family}")
    found: object = getattr(module, f"{kind.__name__}Rule")
    if not (isinstance(found, type) and issubclass(found, Rule)):
        raise TypeError(f"{found!r} is not a rule")
    return found
