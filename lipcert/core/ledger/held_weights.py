"""Mechanisms that keep the weights within their constraints.

Clipless (Béthune et al., 2024); weight clipping, fixed weight norms (Barczewski and Ramon, 2024).
"""

from dataclasses import dataclass

from lipcert.core.ledger.mechanism import Mechanism


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
