"""Lower functions of every entry, of data and of constants, by ONNX's names and attributes."""

from collections.abc import Mapping
from typing import Final

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Data, Value
from lipcert.core.program import Activation
from lipcert.core.registry import spelt
from lipcert.core.rules.activations import function


def activated(call: Call, value: Data, name: str, *numbers: float) -> Data:
    """Apply a function to every entry; raise `Unsupported` if no rule covers these numbers."""
    function(name, numbers)
    return call.step(Activation(name, numbers), value, shape=value.shape, place=value.place)


def applied(call: Call, value: Value, name: str, *numbers: float) -> Value:
    """Apply a function to every entry of data, or return the image of a constant."""
    if isinstance(value, Data):
        return activated(call, value, name, *numbers)
    from lipcert.core.lower.constant_ops import image_of_constant  # noqa: PLC0415  for such alone

    return image_of_constant(value, name, *numbers)


_NUMBERS: Final[Mapping[str, Mapping[str, float]]] = {
    "Celu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "QuickGelu": {"alpha": 1.702},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
}
"""The attributes that are numbers of a function, in its order, with their defaults."""


def named(call: Call) -> Value:
    """Lower an operator to the function of the same name."""
    if len(call) != 1:
        raise Unsupported("a function with a built-in bias")
    kind = call.node.op_type
    numbers = [call.real(key, default) for key, default in _NUMBERS.get(kind, {}).items()]
    name = "gelu_tanh" if kind == "FastGelu" else spelt(kind)
    return applied(call, call.value(0), name, *numbers)
