"""The functions that activations apply, by the names and numbers of `program.Activation`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules.curves import Function

FUNCTIONS: Final[Mapping[str, str]] = {
    "relu": "kinks.relu",
    "leaky_relu": "kinks.leaky_relu",
    "abs": "kinks.absolute",
    "clip": "kinks.clipped",
    "hard_sigmoid": "kinks.hard_sigmoid",
    "hard_swish": "kinks.hard_swish",
    "soft_threshold": "kinks.soft_threshold",
    "sigmoid": "smooth.sigmoid",
    "tanh": "smooth.tanh",
    "atan": "smooth.atan",
    "softplus": "smooth.softplus",
    "softsign": "smooth.softsign",
    "erf": "smooth.erf",
    "sin": "waves.sin",
    "cos": "waves.cos",
    "gelu": "gates.gelu",
    "gelu_tanh": "gates.gelu_tanh",
    "silu": "gates.silu",
    "quick_gelu": "gates.quick_gelu",
    "mish": "gates.mish",
    "elu": "powers.elu",
    "selu": "powers.selu",
    "celu": "powers.celu",
    "exp": "powers.exponential",
    "log": "powers.logarithm",
    "sqrt": "powers.square_root",
    "reciprocal": "powers.reciprocal",
    "power": "powers.power",
}
"""file and function of each name, loaded when a program applies it"""


def function(name: str, numbers: tuple[float, ...]) -> Function:
    """The function of this name; Unsupported where no rule is known for it."""
    if name not in FUNCTIONS or not all(number == number for number in numbers):  # noqa: PLR0124
        raise Unsupported(f"no rule is known for the function {name!r}")
    module, _, member = FUNCTIONS[name].partition(".")
    found = getattr(import_module(f"lipcert.core.rules.{module}"), member)(*numbers)
    if not isinstance(found, Function):
        raise TypeError(f"{FUNCTIONS[name]} is not a function")
    return found
