"""Functions of every entry, by the names and attributes of ONNX, of data and of constants."""

from collections.abc import Mapping
from typing import Final

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.operators import spelt
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


_NUMBERS: Final[Mapping[str, Mapping[str, float]]] = {
    "Celu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "QuickGelu": {"alpha": 1.702},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
}
"""attributes that are numbers of a function, in its order, and what each is by default"""


def named(call: Call) -> Value:
    """The function of the same name as the operator."""
    if len(call) != 1:
        raise Unsupported("a function with a built-in bias")
    kind = call.node.op_type
    numbers = [call.real(key, default) for key, default in _NUMBERS.get(kind, {}).items()]
    name = "gelu_tanh" if kind == "FastGelu" else spelt(kind)
    return applied(call, call.value(0), name, *numbers)
