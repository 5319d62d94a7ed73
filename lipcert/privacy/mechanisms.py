"""Mechanisms: by which device a training algorithm bounds what one example can move.

What enters: the radii that the training run enforces. What leaves: frozen descriptions that the
analysis turns into bounds. Invariant: a description holds everything that the bounds depend on
besides the network, the weights and their constraints; nothing here computes a bound.

Clipless (Béthune et al., 2024), weight clipping and fixed weight norms (Barczewski and Ramon,
2024) hold the *weights*; backpropagation clipping (Stevens et al., 2022) holds each layer's input
and cotangent; gradient clipping (Abadi et al., 2016) holds the gradient itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import final

from lipcert.errors import UsageError


@final
@dataclass(frozen=True, slots=True)
class Clipless:
    """After each step the weights are projected onto their constraints; nothing else is clipped,
    unless a clip of the loss gradient is declared. Bounds hold for the whole run."""


@final
@dataclass(frozen=True, slots=True)
class WeightClipping:
    """After each step a weight above its radius is scaled down to it; bounds are taken at the
    current weights, which are public, and change from step to step."""


@final
@dataclass(frozen=True, slots=True)
class FixedWeightNorm:
    """After each step every weight is scaled to its radius, up or down. Bounds hold for the whole
    run: the sphere is part of the ball."""


@final
@dataclass(frozen=True, slots=True)
class BackpropClipping:
    """Each trained layer clips its input to `input_clip` and its upstream cotangent to
    `cotangent_clip`, example by example. Weights are free.

    l15_on_convs: convolutions measure the cotangent by √Σ_c (Σ_i |g_ci|)², c the channel; all
    other layers, and convolutions otherwise, by the Euclidean norm.
    """

    input_clip: float
    cotangent_clip: float
    l15_on_convs: bool = True

    def __post_init__(self) -> None:
        _positive("input-clip", self.input_clip)
        _positive("cotangent-clip", self.cotangent_clip)


class ClipScope(Enum):
    """What one clip of a gradient covers."""

    FLAT = "flat"
    """the gradient of all parameters together"""
    GROUP = "group"
    """each of the K noised groups by itself, to C/√K"""


class Decay(Enum):
    """Where weight decay λθ enters."""

    DECOUPLED = "decoupled"
    """after the noise; it is public"""
    INSIDE = "inside"
    """∇ℓ + λθ is what is clipped"""


@final
@dataclass(frozen=True, slots=True)
class GradientClipping:
    """The gradient of every example is scaled down to norm `clip_norm`. Weights are free."""

    clip_norm: float
    scope: ClipScope = ClipScope.FLAT
    decay: Decay = Decay.DECOUPLED

    def __post_init__(self) -> None:
        _positive("clip-norm", self.clip_norm)


Mechanism = Clipless | WeightClipping | FixedWeightNorm | BackpropClipping | GradientClipping


def _positive(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0.0):
        raise UsageError(f"{key}: {value!r} is not a positive finite number")
