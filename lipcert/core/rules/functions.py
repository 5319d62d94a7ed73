"""The functions that activations apply, by the names and numbers of `program.Activation`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules import gates, kinks, powers, smooth
from lipcert.core.rules.curves import Function


def function(name: str, numbers: tuple[float, ...]) -> Function:
    """The function of this name; Unsupported where no rule is known for it."""
    if name not in _FUNCTIONS or not all(number == number for number in numbers):  # noqa: PLR0124
        raise Unsupported(f"no rule is known for the function {name!r}")
    return _FUNCTIONS[name](*numbers)


_FUNCTIONS: Final[dict[str, Callable[..., Function]]] = {
    "relu": kinks.relu,
    "leaky_relu": kinks.leaky_relu,
    "abs": kinks.absolute,
    "clip": kinks.clipped,
    "hard_sigmoid": kinks.hard_sigmoid,
    "hard_swish": kinks.hard_swish,
    "soft_threshold": kinks.soft_threshold,
    "elu": lambda alpha: kinks.exponential_below(1.0, alpha, 1.0),
    "selu": lambda alpha, gamma: kinks.exponential_below(gamma, alpha, 1.0),
    "celu": lambda alpha: kinks.exponential_below(1.0, alpha, alpha),
    "sigmoid": smooth.sigmoid,
    "tanh": smooth.tanh,
    "atan": smooth.atan,
    "softplus": smooth.softplus,
    "softsign": smooth.softsign,
    "erf": smooth.erf,
    "sin": lambda: smooth.wave(0),
    "cos": lambda: smooth.wave(1),
    "gelu": gates.gelu,
    "gelu_tanh": gates.gelu_tanh,
    "silu": gates.silu,
    "quick_gelu": gates.quick_gelu,
    "mish": gates.mish,
    "exp": powers.exponential,
    "log": powers.logarithm,
    "sqrt": powers.square_root,
    "reciprocal": lambda: powers.power(-1.0),
    "power": powers.power,
}
