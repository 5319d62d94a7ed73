"""Cosine similarity: a loss of the direction of the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lipcert.losses.base import Loss, LossRecord, require_positive


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
