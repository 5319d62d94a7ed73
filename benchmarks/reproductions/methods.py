"""Methods: the published private training algorithms with their few candidates each.

What enters: networks. What leaves: what is tuned and compared. Every method has six candidates
for every network, so that none is tuned more than another. All examples have norm at most 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from benchmarks.reproductions.study import Candidate, Method, Perceptron
from lipcert.core.ledger.updates import ClipScopeName, DecayName
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    Loss,
    TrainingMechanism,
    WeightClipping,
)

__all__ = ["NORMALISED", "PLAIN", "backprop_clipping", "dp_sgd", "held_weights"]

PLAIN: Final = (Perceptron(),)
NORMALISED: Final = (Perceptron(0.1), Perceptron(0.5))
CLIPS: Final = (0.3, 1.0)
CLIPPED_RATES: Final = (0.03, 0.1, 0.3)
SCALES: Final = ((1.0, 1.0 / 16.0, 6.4), (2.0, 0.25, 2.0), (3.0, 1.0, None))
"""spectral radius, temperature, clip of the loss gradient; the last is the plain cross-entropy"""
HELD_RATES: Final = (0.03, 0.1)
BIAS_SHARE: Final = 0.5
"""of the radius: the norm that biases are held to"""
SLACK: Final = 0.1
"""of weight clipping's norms, within which one bound serves several steps"""
BJORCK: Final = 2
"""iterations of clipless training towards orthogonal weights, after each step"""


def _method(
    name: str,
    networks: tuple[Perceptron, ...],
    mechanisms: Mapping[str, TrainingMechanism],
    rates: tuple[float, ...],
) -> Method:
    return Method(
        name,
        tuple(
            Candidate(mechanism, network, rate, f"{label}, {_told(network)}η = {rate:g}")
            for network, (label, mechanism), rate in itertools.product(
                networks, mechanisms.items(), rates
            )
        ),
    )


def _told(network: Perceptron) -> str:
    return "" if network.norm_floor is None else f"α = {network.norm_floor:g}, "


def dp_sgd(
    name: str,
    networks: tuple[Perceptron, ...],
    scope: ClipScopeName = "flat",
    decay: DecayName = "decoupled",
    weight_decay: float = 0.0,
) -> Method:
    """Per-example clipping; weight_decay: λ inside the clip."""
    mechanisms = {
        f"C = {clip:g}": GradientClipping(
            clip_norm=clip,
            clip_scope=scope,
            input_norm=1.0,
            decay=decay,
            weight_decay=weight_decay,
        )
        for clip in CLIPS
    }
    return _method(name, networks, mechanisms, CLIPPED_RATES)


def held_weights(
    name: str,
    networks: tuple[Perceptron, ...],
    kind: type[Clipless | FixedWeightNorm | WeightClipping],
) -> Method:
    """Clipless, Fix-Lip-DP-SGD or Lip-DP-SGD: weights are held; of the gradients, only that of the
    loss at the logits is clipped."""
    sign = "=" if kind is FixedWeightNorm else "≤"
    mechanisms = {
        f"‖W‖ {sign} {radius:g}, τ = {temperature:g}": _held(kind, radius, temperature, loss_clip)
        for radius, temperature, loss_clip in SCALES
    }
    return _method(name, networks, mechanisms, HELD_RATES)


def _held(
    kind: type[Clipless | FixedWeightNorm | WeightClipping],
    radius: float,
    temperature: float,
    loss_clip: float | None,
) -> TrainingMechanism:
    held = kind(
        radius=radius,
        bias_norm=BIAS_SHARE * radius,
        input_norm=1.0,
        loss=Loss("cross-entropy", temperature=temperature),
        loss_clip=loss_clip,
    )
    match held:
        case Clipless():
            return replace(held, orthogonalize=BJORCK)
        case WeightClipping():
            return replace(held, slack=SLACK)
        case FixedWeightNorm():
            return held


def backprop_clipping(name: str, networks: tuple[Perceptron, ...]) -> Method:
    """Clips of every layer's input and cotangent."""
    mechanisms = {
        f"C = {clip:g}": BackpropClipping(input_clip=1.0, cotangent_clip=clip, input_norm=1.0)
        for clip in CLIPS
    }
    return _method(name, networks, mechanisms, CLIPPED_RATES)
