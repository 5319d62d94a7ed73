"""Functions of every entry, by the names and attributes of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from lipcert.core.lower.call import Call
from lipcert.core.lower.errors import Unsupported
from lipcert.core.lower.values import Constant, Data, Value
from lipcert.core.program import Activation


def activated(call: Call, value: Data, name: str, *numbers: float) -> Data:
    """A function of every entry."""
    return call.step(Activation(name, numbers), value, shape=value.shape, place=value.place)


def limited(call: Call, value: Data, limit: Constant, *, smallest: bool) -> Data:
    """max(x, c) or min(x, c) with one number c."""
    if limit.lo.size != 1 or limit.lo is not limit.hi:
        raise Unsupported("a limit is not one exact number")
    limit.check_fixed()
    call.sink.untracked.update(limit.sources)
    number = float(limit.lo.reshape(-1)[0])
    return _clipped(call, value, *(-math.inf, number) if smallest else (number, math.inf))


def _clipped(call: Call, value: Data, low: float, high: float) -> Data:
    """min(max(x, low), high), which is a real number where one is between the limits."""
    if not low <= high or low == math.inf or high == -math.inf:
        raise Unsupported("its limits are in the wrong order, or leave no number")
    return activated(call, value, "clip", low, high)


def _clip(call: Call) -> Value:
    if call.version < 11:
        low, high = call.real("min", -math.inf), call.real("max", math.inf)
    else:
        low = call.number(1) if call.has(1) else -math.inf
        high = call.number(2) if call.has(2) else math.inf
    return _clipped(call, call.data(), low, high)


def _function(name: str, **defaults: float) -> Callable[[Call], Value]:
    """A function whose parameters are attributes, in this order."""

    def rule(call: Call) -> Value:
        if len(call) != 1:
            raise Unsupported("a function with a built-in bias")
        numbers = [call.real(key, default) for key, default in defaults.items()]
        return activated(call, call.data(), name, *numbers)

    return rule


def _gelu(call: Call) -> Value:
    kind = call.text("approximate", "none")
    if kind not in {"none", "tanh"}:
        raise Unsupported("its approximation is not known")
    return activated(call, call.data(), "gelu" if kind == "none" else "gelu_tanh")


def _swish(call: Call) -> Value:
    alpha = call.real("alpha", 1.0)
    value = call.data()
    return (
        activated(call, value, "silu")
        if alpha == 1.0
        else activated(call, value, "quick_gelu", alpha)
    )


_PLAIN: Final = [
    "Abs", "Atan", "Cos", "Erf", "Exp", "Log", "Mish", "Reciprocal", "Relu", "Sigmoid", "Sin",
    "Softplus", "Softsign", "Sqrt", "Tanh",
]  # fmt: skip

FUNCTIONS: Final[Mapping[str, Callable[[Call], Value]]] = {
    **{name: _function(name.lower()) for name in _PLAIN},
    "Celu": _function("celu", alpha=1.0),
    "Clip": _clip,
    "Elu": _function("elu", alpha=1.0),
    "Gelu": _gelu,
    "HardSigmoid": _function("hard_sigmoid", alpha=0.2, beta=0.5),
    "HardSwish": _function("hard_swish"),
    "LeakyRelu": _function("leaky_relu", alpha=0.01),
    "Selu": _function("selu", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Swish": _swish,
    "com.microsoft.FastGelu": _function("gelu_tanh"),
    "com.microsoft.Gelu": _function("gelu"),
    "com.microsoft.QuickGelu": _function("quick_gelu", alpha=1.702),
}
