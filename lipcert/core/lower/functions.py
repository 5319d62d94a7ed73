"""Functions of every entry, by the names and attributes of ONNX, of data and of constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from lipcert.core.interval import Interval
from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Constant, Data, Value
from lipcert.core.program import Activation
from lipcert.core.rules.activations import function


def activated(call: Call, value: Data, name: str, *numbers: float) -> Data:
    """A function of every entry; `Unsupported` where it has no rule for these numbers."""
    function(name, numbers)
    return call.step(Activation(name, numbers), value, shape=value.shape, place=value.place)


def image_of(known: Interval, name: str, *numbers: float) -> Interval:
    """Where a function of numbers in intervals lies."""
    return function(name, numbers).image(known)


def steepest(known: Interval, name: str, *numbers: float) -> float:
    """The largest derivative of a function of numbers in intervals; inf where none is known."""
    try:
        derivative = function(name, numbers).derivative(known)
    except Unsupported:
        return math.inf
    return float(np.max(derivative.magnitude(), initial=0.0))


def applied(call: Call, value: Value, name: str, *numbers: float) -> Value:
    """A function of every entry of data, or the image of a constant."""
    if isinstance(value, Data):
        return activated(call, value, name, *numbers)
    value.check_fixed()
    if not value.is_float:
        raise Unsupported("a function of whole numbers")
    known = Interval(value.lo, value.hi)
    image = image_of(known, name, *numbers)
    high = image.lo if np.array_equal(image.lo, image.hi) else image.hi
    sources = dict.fromkeys(value.sources, math.inf)
    if not sources:
        return Constant(image.lo, high, sources, value.place)
    from lipcert.core.lower.slopes import chained  # noqa: PLC0415  for such alone

    slopes = chained((value, steepest(known, name, *numbers)))
    return Constant(image.lo, high, sources, value.place, slopes=slopes)


def _function(name: str, **defaults: float) -> Callable[[Call], Value]:
    """A function whose parameters are attributes, in this order."""

    def rule(call: Call) -> Value:
        if len(call) != 1:
            raise Unsupported("a function with a built-in bias")
        numbers = [call.real(key, default) for key, default in defaults.items()]
        return applied(call, call.value(0), name, *numbers)

    return rule


_PLAIN: Final = [
    "Abs", "Atan", "Cos", "Erf", "Exp", "Log", "Mish", "Reciprocal", "Relu", "Sigmoid", "Sin",
    "Softplus", "Softsign", "Sqrt", "Tanh",
]  # fmt: skip

FUNCTIONS: Final[Mapping[str, Callable[[Call], Value]]] = {
    **{name: _function(name.lower()) for name in _PLAIN},
    "Celu": _function("celu", alpha=1.0),
    "Elu": _function("elu", alpha=1.0),
    "HardSigmoid": _function("hard_sigmoid", alpha=0.2, beta=0.5),
    "HardSwish": _function("hard_swish"),
    "LeakyRelu": _function("leaky_relu", alpha=0.01),
    "Selu": _function("selu", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "com.microsoft.FastGelu": _function("gelu_tanh"),
    "com.microsoft.Gelu": _function("gelu"),
    "com.microsoft.QuickGelu": _function("quick_gelu", alpha=1.702),
}
