"""How the uses of a parameter combine into the norm of its gradient.

What enters: a graph. What leaves: for every trained parameter its uses, and whether their squared
norms simply add. Decided from `places` alone, never from names.

Let use k read array_k = scale_k · θ[places_k]. The chain rule gives
∂loss/∂θ = Σ_k scale_k · (∂loss/∂array_k, each entry put back to its place). Where no place is read
twice, by one use or by two, the terms have disjoint supports and each is a rearrangement, so
‖∂loss/∂θ‖² = Σ_k scale_k²‖∂loss/∂array_k‖². Otherwise the gradients must be added up in θ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.graph.ir import Graph, Use
from lipcert.upper import FloatArray


@final
@dataclass(frozen=True, slots=True, eq=False)
class ParameterUses:
    """A trained parameter, its uses, and whether these are disjoint rearrangements."""

    name: str
    size: int
    uses: tuple[Use, ...]
    disjoint: bool


def uses_of(graph: Graph) -> Mapping[str, ParameterUses]:
    """All trained parameters of a graph, also those that no operand shows."""
    found: dict[str, list[Use]] = {
        name: [] for name, parameter in graph.parameters.items() if parameter.trainable
    }
    for use in graph.trained_uses():
        found[use.parameter].append(use)
    return {
        name: ParameterUses(name, size, tuple(uses), _disjoint(uses, size))
        for name, uses in found.items()
        for size in (graph.parameters[name].size,)
    }


def _disjoint(uses: list[Use], size: int) -> bool:
    if len(uses) == 1 and uses[0].operand.places is None:
        return True
    counts = np.zeros(size + 1, dtype=np.int64)
    for use in uses:
        np.add.at(counts, use.places, 1)
    return bool(counts[-1] == 0 and _largest(counts) <= 1)


def _largest(counts: FloatArray | np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    return int(np.max(counts, initial=0))
