"""The parameters of a loss, as a certificate states them: read, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final, TypeAlias

from lipcert.core.lower.errors import Unsupported

Parameter: TypeAlias = Fraction | bool | str
Parameters: TypeAlias = Mapping[str, Parameter]

REDUCTION: Final = "output_reduction"
"""how the terms of one example are combined: "mean" or "sum"."""


def is_mean(parameters: Parameters) -> bool:
    """Whether the terms are averaged."""
    if parameters[REDUCTION] not in ("mean", "sum"):
        raise Unsupported(f"output_reduction is {parameters[REDUCTION]!r}, not mean or sum")
    return parameters[REDUCTION] == "mean"


def flag(parameters: Parameters, name: str) -> bool:
    """A truth value."""
    value = parameters[name]
    if not isinstance(value, bool):
        raise Unsupported(f"{name} is neither true nor false")
    return value


def number(parameters: Parameters, name: str) -> Fraction:
    """A number."""
    value = parameters[name]
    if not isinstance(value, Fraction):
        raise Unsupported(f"{name} is no number")
    return value


def positive(parameters: Parameters, name: str) -> Fraction:
    """A number above 0."""
    value = number(parameters, name)
    if value <= 0:
        raise Unsupported(f"{name} is not positive")
    return value


def not_negative(parameters: Parameters, name: str) -> Fraction:
    """A number that is 0 or above."""
    value = number(parameters, name)
    if value < 0:
        raise Unsupported(f"{name} is negative")
    return value
