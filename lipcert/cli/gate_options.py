"""The options that set gates, alike in every verb that has them.

What enters: click's parse of them. What leaves: `Gates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import click

from lipcert.settings.gates import (
    MAX_EPSILON,
    MAX_GRAD_NORM,
    MAX_NOISE_TO_SIGNAL,
    MAX_SENSITIVITY,
    MAX_SLACK,
    Gates,
)

_Command = TypeVar("_Command", bound=Callable[..., object])
_TEXTS: Final = MappingProxyType(
    {
        MAX_GRAD_NORM: "Fail (exit 1) where the bound G of the gradient of one example is larger.",
        MAX_SENSITIVITY: "Fail where the sensitivity Δ of a release is larger.",
        MAX_EPSILON: "Fail where the ε of the run is larger.",
        MAX_SLACK: "Fail where G is more than X times the largest observed gradient norm.",
        MAX_NOISE_TO_SIGNAL: "Fail where the noise of one release is more than X times the norm "
        "of the mean gradient, at the upper end of its interval; not known without --data.",
    }
)


def gate_options(*gates: str) -> Callable[[_Command], _Command]:
    """Add the options of these gates; `gates_of` reads them."""

    def added(command: _Command) -> _Command:
        for gate in reversed(gates):
            command = click.option(f"--{gate}", type=click.FLOAT, metavar="X", help=_TEXTS[gate])(
                command
            )
        return command

    return added


def gates_of(words: Mapping[str, Any]) -> Gates:
    """The gates among the words of a command; UsageError for odd limits."""
    names = [gate.replace("-", "_") for gate in _TEXTS]
    return Gates(**{name: words[name] for name in names if name in words})
