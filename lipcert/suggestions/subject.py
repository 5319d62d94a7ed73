"""Subject: what changes are sought for: a network, its run, and what is known of an example."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lipcert.core.losses.base import Loss
from lipcert.core.rules.facts import Fact
from lipcert.gradient_stats.examples import Examples
from lipcert.graph.viewed import parameters_of
from lipcert.settings.settings import Settings
from lipcert.suggestions import written
from lipcert.suggestions.structure import Structure
from lipcert.upper import FloatArray

_FEW: Final = 2


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """The network and the run that changes are sought for. at_input: of an example."""

    parts: Structure
    settings: Settings
    loss: Loss
    at_input: Fact
    examples: Examples | None

    def numbers(self, names: list[str], value: float) -> dict[str, FloatArray]:
        """Parameters filled with a number, those of them that are not already."""
        own = parameters_of(self.parts.graph)
        return {
            name: np.full(own[name].shape, value) for name in names if np.any(own[name] != value)
        }

    def patterns(self, names: Collection[str]) -> tuple[str, ...]:
        """Of these parameters and no other trained one."""
        return written.globs(names, self.trained)

    @property
    def trained(self) -> list[str]:
        """All trained parameters."""
        return [name for name, item in self.parts.graph.parameters.items() if item.trainable]


def told(names: list[str]) -> str:
    """Few names, or how many there are."""
    unique = [f"layer {name}" if name.isdigit() else name for name in dict.fromkeys(names)]
    return " and ".join(unique) if len(unique) <= _FEW else f"{len(unique)} layers"
