"""Cosine similarity: a loss of the direction of the output.

What enters: facts about the output, and a floor under its norm. What leaves: a norm bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from lipcert.facts import Bound, CotangentFacts, ValueFacts, no_bound
from lipcert.losses.base import Loss, LossRecord, require_positive
from lipcert.upper import ONE, FloatArray, Lower, norm_lower


@final
@dataclass(frozen=True, slots=True)
class Cosine(Loss):
    """ℓ = −⟨z, y⟩/max(‖z‖, floor) with ‖y‖₂ ≤ 1 (plus any constant); no floor: 0."""

    cosine_floor: float | None = None

    def __post_init__(self) -> None:
        if self.cosine_floor is not None:
            require_positive("cosine-floor", self.cosine_floor)

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "cosine"

    def parameters(self) -> LossRecord:
        """The floor, if any."""
        return {} if self.cosine_floor is None else {"cosine_floor": self.cosine_floor}

    def cotangent(self, logits: ValueFacts) -> CotangentFacts:
        """Returns B with B ≥ sup ‖∂ℓ/∂z‖₂ = 1/max(floor, inf ‖z‖).

        Hypotheses: ‖y‖₂ ≤ 1; the floor or the smallest output norm is positive.
        Proof: above the floor the gradient is −(I − uuᵀ)y/‖z‖ with u = z/‖z‖, below it −y/floor;
        at the kink, a convex combination. inf ‖z‖ is at least the norm of the box's entrywise
        distances to 0.
        Attained: for y orthogonal to an output of the smallest norm, or below the floor.
        Reference: Béthune et al. 2024.
        """
        floor = max(self.cosine_floor or 0.0, _smallest_norm(logits).value)
        bound = ONE.over(Lower(floor))
        if not bound.is_finite:
            return CotangentFacts(
                no_bound(
                    "loss.cosine",
                    "the gradient of the cosine grows without bound as the output nears 0",
                    "divide by max(‖z‖, K) in the loss and state K with --cosine-floor",
                )
            )
        return CotangentFacts(Bound(bound, "loss.cosine"))


def _smallest_norm(logits: ValueFacts) -> Lower:
    box = logits.box
    distance: FloatArray = np.maximum(np.maximum(box.lo, -box.hi), 0.0)
    return norm_lower(np.broadcast_to(distance, logits.shape))
