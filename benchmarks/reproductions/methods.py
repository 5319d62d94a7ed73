"""Methods: the published private training algorithms with their few candidates each.

What enters: a network. What leaves: what is tuned and compared. Every method has four candidates,
so that none is tuned more than another. All examples have norm at most 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import nn

from benchmarks.reproductions.datasets import Problem
from benchmarks.reproductions.study import Candidate, Method
from lipcert.choices import AllocationName, ClipScopeName, DecayName
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    TrainingMechanism,
    WeightClipping,
)

__all__ = ["backprop_clipping", "dp_sgd", "held_weights"]

Network = Callable[[Problem], nn.Module]
RATES: Final = (0.01, 0.03)
CLIPS: Final = (0.3, 1.0)
RADII: Final = (1.0, 3.0)
BIAS_SHARE: Final = 0.5
"""of the radius: the norm that biases are held to"""


def _method(
    name: str, network: Network, mechanisms: tuple[TrainingMechanism, ...], decay: float = 0.0
) -> Method:
    return Method(
        name,
        tuple(
            Candidate(mechanism, network, rate, decay) for mechanism in mechanisms for rate in RATES
        ),
    )


def dp_sgd(
    name: str,
    network: Network,
    scope: ClipScopeName = "flat",
    decay: DecayName = "decoupled",
    weight_decay: float = 0.0,
) -> Method:
    """Per-example clipping; weight_decay: λ, inside the clip or decoupled."""
    inside = decay == "inside"
    return _method(
        name,
        network,
        tuple(
            GradientClipping(
                clip_norm=clip,
                clip_scope=scope,
                input_norm=1.0,
                decay=decay,
                weight_decay=weight_decay if inside else 0.0,
            )
            for clip in CLIPS
        ),
        0.0 if inside else weight_decay,
    )


def held_weights(
    name: str,
    network: Network,
    kind: type[Clipless | FixedWeightNorm | WeightClipping],
    allocation: AllocationName = "optimal",
) -> Method:
    """Clipless, Fix-Lip-DP-SGD or Lip-DP-SGD: weights are held, gradients are not clipped."""
    mechanisms = tuple(
        kind(
            radius=radius,
            bias_norm=BIAS_SHARE * radius,
            input_norm=1.0,
            allocation=allocation,
        )
        for radius in RADII
    )
    return _method(name, network, mechanisms)


def backprop_clipping(
    name: str, network: Network, allocation: AllocationName = "optimal"
) -> Method:
    """Clips of every layer's input and cotangent."""
    return _method(
        name,
        network,
        tuple(
            BackpropClipping(
                input_clip=1.0, cotangent_clip=clip, input_norm=1.0, allocation=allocation
            )
            for clip in CLIPS
        ),
    )
