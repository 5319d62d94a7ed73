"""The functions that activations apply, by the names and numbers of `program.Activation`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final, Protocol

from lipcert.core.interval import Interval
from lipcert.core.lower.errors import Unsupported

FUNCTIONS: Final[Mapping[str, str]] = {
    "relu": "relu.Relu",
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
    "gelu_tanh": "tanh_gates.gelu_tanh",
    "silu": "gates.silu",
    "quick_gelu": "gates.quick_gelu",
    "mish": "tanh_gates.mish",
    "elu": "powers.elu",
    "selu": "powers.selu",
    "celu": "powers.celu",
    "exp": "powers.exponential",
    "log": "powers.logarithm",
    "sqrt": "powers.square_root",
    "reciprocal": "powers.reciprocal",
    "power": "powers.power",
}
"""file, and function or class, of each name, loaded when a program applies it"""


class ScalarFunction(Protocol):
    """A locally Lipschitz function f of one number, over boxes of arguments."""

    @property
    def at_zero(self) -> float:
        """≥ |f(0)|."""

    def image(self, box: Interval) -> Interval:
        """f(x) for all x of the box."""

    def derivative(self, box: Interval) -> Interval:
        """Every Clarke derivative at every x of the box."""

    def chord(self, box: Interval) -> float:
        """≥ |f(x) − f(0)|/|x| on the box."""


def function(name: str, numbers: tuple[float, ...]) -> ScalarFunction:
    """The function of this name; Unsupported where no rule is known for it."""
    if name not in FUNCTIONS or not all(number == number for number in numbers):  # noqa: PLR0124
        raise Unsupported(f"no rule is known for the function {name!r}")
    module, _, member = FUNCTIONS[name].partition(".")
    file = import_module(f"lipcert.core.rules.{module}")
    found: ScalarFunction = getattr(file, member)(*numbers)
    return found
