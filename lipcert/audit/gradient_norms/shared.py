"""Gradient norms of parameters whose uses overlap: tied weights, repeated or padded views.

What enters: the pairs of all uses. What leaves: squares of the gradient that is the sum of all
uses, added up in the parameter's own coordinates, in float64, a few examples at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import final

import numpy as np
import torch
from torch import Tensor

from lipcert.audit.gradient_norms.method import OperandGradient
from lipcert.audit.gradient_norms.pair import Pair
from lipcert.audit.gradient_norms.rounding import OUTWARD, gamma
from lipcert.audit.gradient_norms.squares import Squares, sum_of_squares, widened
from lipcert.graph.ir import Use


@final
@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """θ ← θ + scale · entries, the entry at `entries[i]` being added at `places[i]`.

    repeats: how often the most frequent place occurs.
    """

    entries: Tensor
    places: Tensor
    scale: float
    repeats: int

    @classmethod
    def of(cls, use: Use, device: torch.device) -> Scatter:
        """The adjoint of the view."""
        read = np.flatnonzero(use.places >= 0)
        places = use.places[read].astype(np.int64)
        repeats = int(np.max(np.bincount(places), initial=0)) if places.size else 0
        return cls(
            torch.from_numpy(read).to(device),
            torch.from_numpy(places).to(device),
            use.operand.scale,
            repeats,
        )

    @property
    def stretch(self) -> float:
        """Norm of the map."""
        return abs(self.scale) * sqrt(self.repeats) * OUTWARD


@final
@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """What one use adds to the gradient of its parameter."""

    gradient: OperandGradient
    scatter: Scatter
    pair: Pair


def shared_squares(found: Sequence[Contribution], size: int, memory_limit: int) -> Squares:
    """‖Σ_k P_k g_k‖², P_k the scatter of use k and g_k the gradient of its operand.

    Proof: an entry of the sum has at most N = Σ repeats terms, scaled and added in float64:
    off by γ_{N+1} Σ|terms|, and ‖Σ|terms|‖ ≤ Σ_k ‖P_k‖‖g_k‖; g_k is off by its own distance.
    """
    examples = len(found[0].pair)
    scratch = 8 * size + max(use.gradient.gradient_scratch(use.pair) * 2 for use in found)
    chunk = max(1, memory_limit // scratch)
    parts = [
        _chunk_squares([(use, use.pair.part(i, i + chunk).double()) for use in found], size)
        for i in range(0, examples, chunk)
    ]
    return Squares.joined(parts)


def _chunk_squares(uses: Sequence[tuple[Contribution, Pair]], size: int) -> Squares:
    first = uses[0][1].b
    total = first.new_zeros(len(first), size)  # float64 [examples, parameter]
    distance = first.new_zeros(len(first))
    terms = gamma(sum(use.scatter.repeats for use, _ in uses) + 2, torch.float64)
    for use, pair in uses:
        gradients = use.gradient.gradients(pair)
        flat = gradients.gradient.double().reshape(len(first), -1)
        scatter = use.scatter
        total.index_add_(1, scatter.places, flat[:, scatter.entries], alpha=scatter.scale)
        reach = sum_of_squares(flat).upper.sqrt()
        distance = distance + (gradients.distance + reach * terms) * scatter.stretch
    return widened(sum_of_squares(total), distance * OUTWARD)
