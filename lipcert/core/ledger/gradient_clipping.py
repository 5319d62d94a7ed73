"""Gradient clipping (Abadi et al., 2016): the gradient of every example is held itself."""

from dataclasses import dataclass
from typing import Literal

from lipcert.core.codec import Bound
from lipcert.core.ledger.mechanism import Mechanism

ClipScopeName = Literal["flat", "group"]
"""one clip of the gradient of all parameters together, or of each of K noised groups, to C/√K"""
DecayName = Literal["decoupled", "inside"]
"""weight decay λθ enters after the noise, being public, or ∇ℓ + λθ is what is clipped"""


@dataclass(frozen=True, slots=True)
class GradientClipping(Mechanism):
    """The gradient of every example is scaled down to norm `clip_norm`. Weights are free."""

    kind = "gradient-clipping"
    said = "gradient-clipping to {clip_norm:.12g} ({clip_scope}, weight decay {decay})"
    weights = "free"
    gradient = "the clipped gradient of its loss"
    clips_gradients = True
    clip_norm: Bound
    clip_scope: ClipScopeName = "flat"
    decay: DecayName = "decoupled"

    @property
    def text(self) -> str:
        """The text of A-MECHANISM, with the radius."""
        return (
            f"The gradient of every example is clipped to {self.clip_norm!r} ({self.clip_scope}), "
            f"decay {self.decay}."
        )
