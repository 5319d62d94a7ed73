"""The rule of each kind of step, by the file that holds it, which is loaded when it is asked for.

So a check rests on the rules of the steps in its program, and on no others.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Op
from lipcert.core.rules.base import Rule

_KINDS: Final = {
    "activations": "Activation",
    "attention": "Attention",
    "averages": "AveragePool",
    "clips": "CotangentClip InputClip",
    "centring": "Centre DivideByNorm",
    "concat": "Concat",
    "convolution": "Conv",
    "dense": "Dense",
    "embedding": "Embedding",
    "factors": "BatchNorm PRelu",
    "lengths": "LpPool ReduceLogSumExp ReduceNorm",
    "masks": "Compare MaskedMean",
    "moves": "Move",
    "normalize": "Normalize",
    "products": "Divide MatMul Multiply",
    "responses": "LocalResponse",
    "scales": "Scale Shift",
    "selections": "MaxPool ReduceMax Sort",
    "softmax": "Softmax",
    "sums": "Add ReduceSum",
}
"""the kinds of steps of each module of this package, which has a class `<kind>Rule` for each"""
FAMILIES: Final = {kind: family for family, kinds in _KINDS.items() for kind in kinds.split()}
"""the module of each kind"""


def rule_class(kind: type[Op]) -> type[Rule[Any]]:
    """The rule of a kind of step; Unsupported where there is none."""
    family = FAMILIES.get(kind.__name__)
    if family is None:
        raise Unsupported(f"there is no rule for {kind.__name__}")
    module = import_module(f"lipcert.core.rules.{family}")
    found: type[Rule[Any]] = getattr(module, f"{kind.__name__}Rule")
    return found
