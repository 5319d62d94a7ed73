"""What each kind of loss sends into the network: a norm, and a hull where the labels are classes.

What enters: the kind and every parameter of a loss of one example, as a certificate states them,
and a fact about the outputs z of one example. What leaves: a bound for every admissible label.
A parameter that is missing, unknown or out of range is refused: it would be another loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final, TypeAlias

from lipcert.core.losses.parameters import REDUCTION, Parameters
from lipcert.core.lower.errors import Unsupported
from lipcert.core.program import Shape
from lipcert.core.rules.facts import Cotangent, Fact

_Rule: TypeAlias = Callable[[Parameters, Fact, int], Cotangent]

KINDS: Final[Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    "cross-entropy": ("softmax.cross_entropy", ("temperature", "label_smoothing"), ()),
    "nll": ("margins.negative_log_likelihood", (), ()),
    "focal": ("focal.focal", ("focal_gamma",), ()),
    "bce": ("entries.binary_cross_entropy", ("temperature", REDUCTION), ()),
    "mse": ("entries.squared_error", ("label_norm", REDUCTION, "half"), ()),
    "mae": ("entries.absolute_error", (REDUCTION,), ()),
    "huber": ("entries.huber", ("huber_delta", REDUCTION), ("label_norm",)),
    "multiclass-hinge": ("margins.multiclass_hinge", ("margin", REDUCTION), ()),
    "multi-margin": ("margins.multi_margin", ("margin", REDUCTION), ()),
    "kr": ("margins.kantorovich_rubinstein", (), ()),
    "hkr": ("margins.hinge_kr", ("hkr_weight", "margin"), ()),
    "cosine": ("entries.cosine", (), ("cosine_floor",)),
}
"""by kind: module and function, loaded when needed; the parameters it has, and may have"""
_OF_CLASSES: Final = frozenset(
    {"cross-entropy", "nll", "focal", "multiclass-hinge", "multi-margin", "kr", "hkr"}
)


def loss_cotangent(kind: str, parameters: Parameters, logits: Fact, shape: Shape) -> Cotangent:
    """The gradient of a loss by the outputs of this shape, batch axis of one example included."""
    if kind not in KINDS:
        raise Unsupported(f"there is no rule for the loss {kind!r}")
    name, required, optional = KINDS[kind]
    if not set(required) <= set(parameters) <= {*required, *optional}:
        raise Unsupported(f"the loss {kind} has other parameters than {sorted(parameters)}")
    if kind in _OF_CLASSES and sum(length != 1 for length in shape) > 1:
        raise Unsupported(f"the loss {kind} needs one vector of class scores, not shape {shape}")
    module, _, function = name.partition(".")
    rule: _Rule = getattr(import_module(f"lipcert.core.losses.{module}"), function)
    return rule(parameters, logits, math.prod(shape))
