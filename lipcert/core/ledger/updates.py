"""Mechanisms that act on the whole gradient of an example, or on the weights after each step.

Gradient clipping (Abadi et al., 2016); clipless training (Béthune et al., 2024); weight clipping
and fixed weight norms (Barczewski and Ramon, 2024).
"""

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


@dataclass(frozen=True, slots=True)
class Clipless(Mechanism):
    """After each step the weights are projected onto their constraints; nothing else is clipped,
    unless a clip of the loss gradient is declared. Bounds hold for the whole run."""

    kind = "clipless"
    said = "clipless: after each step the weights are projected onto their constraints"
    weights = "held"
    fills_scope = True


@dataclass(frozen=True, slots=True)
class WeightClipping(Mechanism):
    """After each step a weight above its radius is scaled down to it. Bounds are computed at the
    current weights, which are public, and so change from step to step."""

    kind = "weight-clipping"
    said = "weight-clipping: after each step weights above their radius are scaled to it"
    weights = "stepwise"


@dataclass(frozen=True, slots=True)
class FixedWeightNorm(Mechanism):
    """After each step every weight is scaled to its radius, up or down. Bounds hold for the whole
    run, as the sphere lies in the ball."""

    kind = "fixed-weight-norm"
    said = "fixed-weight-norm: after each step weights are scaled to their radius"
    weights = "held"
    scales_up = True
