"""Gradient clipping (Abadi et al., 2016): every example's whole gradient is clipped."""

from dataclasses import dataclass
from typing import Literal

from lipcert.core.codec import Bound
from lipcert.core.ledger.mechanism import Mechanism

ClipScopeName = Literal["flat", "group"]
"""flat: the gradient of all parameters is clipped to C; group: that of each of K groups to C/√K."""
DecayName = Literal["decoupled", "inside"]
"""decoupled: weight decay λθ, being public, enters after the noise; inside: ∇ℓ + λθ is clipped."""


@dataclass(frozen=True, slots=True)
class GradientClipping(Mechanism):
    """The gradient of every example is scaled down to norm `clip_norm`. Weights are free."""

    kind = "gradient-clipping"
    said = "gradient-clipping to {clip_norm!r} ({clip_scope}, weight decay {decay})"
    weights = "free"
    gradient = "the clipped gradient of its loss"
    clips_gradients = True
    clip_norm: Bound
    clip_scope: ClipScopeName = "flat"
    decay: DecayName = "decoupled"
