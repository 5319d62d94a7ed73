"""Functions of every entry, by the names and attributes of ONNX, of data and of constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Data, Value
from lipcert.core.program import Activation
from lipcert.core.rules.activations import function


def activated(call: Call, value: Data, name: str, *numbers: float) -> Data:
    """A function of every entry; `Unsupported` where it has no rule for these numbers."""
    function(name, numbers)
    return call.step(Activation(name, numbers), value, shape=value.shape, place=value.place)


def applied(call: Call, value: Value, name: str, *numbers: float) -> Value:
    """A function of every entry of data, or the image of a constant."""
    if isinstance(value, Data):
        return activated(call, value, name, *numbers)
    from lipcert.core.lower.slopes import image_of_constant  # noqa: PLC0415  for such alone

    return image_of_constant(value, name, *numbers)


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
