"""The mechanism of a planned run: its description, and what it makes of a gradient bound.

What enters: the settings, groups with the bounds of the network. What leaves: a `Mechanism`, and
groups with the bounds of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lipcert.analysis.groups import Group
from lipcert.facts import Bound, tightest
from lipcert.privacy.mechanisms import (
    BackpropClipping,
    Clipless,
    ClipScope,
    Decay,
    FixedWeightNorm,
    GradientClipping,
    Mechanism,
    WeightClipping,
)
from lipcert.settings import Settings
from lipcert.upper import Lower, Upper, root_sum_square


def mechanism_of(settings: Settings) -> Mechanism | None:
    """The mechanism that the settings name; None: the network bounds its gradients by itself."""
    match settings.mechanism:
        case "none":
            return None
        case "clipless":
            return Clipless()
        case "weight-clipping":
            return WeightClipping()
        case "fixed-weight-norm":
            return FixedWeightNorm()
        case "backprop-clipping":
            return BackpropClipping(
                settings.input_clip or 0.0,
                settings.cotangent_clip or 0.0,
                settings.conv_clip != "l2",
            )
        case "gradient-clipping":
            return GradientClipping(
                settings.clip_norm or 0.0,
                ClipScope(settings.clip_scope or "flat"),
                Decay(settings.decay or "decoupled"),
            )


def mechanism_record(settings: Settings) -> Mapping[str, str | float]:
    """The mechanism and its radii under the names of the settings, defaults written out."""
    record: dict[str, str | float] = {"kind": settings.mechanism}
    match mechanism_of(settings):
        case BackpropClipping(input_clip, cotangent_clip, l15_on_convs):
            record["input_clip"] = input_clip
            record["cotangent_clip"] = cotangent_clip
            record["conv_clip"] = "l1.5" if l15_on_convs else "l2"
        case GradientClipping(clip_norm, scope, decay):
            record["clip_norm"] = clip_norm
            record["clip_scope"] = scope.value
            record["decay"] = decay.value
    return record


def clipped_grad_norms(
    grad_norms: Mapping[str, Bound], mechanism: Mechanism | None, *, drops: bool = False
) -> Mapping[str, Bound]:
    """Bounds per parameter after the clip of the whole gradient: min(G, C), or C.

    drops: whether training drops entries of values at random, example by example.
    Proof: a clip only shrinks, and leaves no part longer than C. With the decay inside, what is
    clipped is ∇ℓ + λθ, and with dropout the gradient of another network: G says nothing of either.
    """
    if not isinstance(mechanism, GradientClipping):
        return grad_norms
    clip = Bound(Upper(mechanism.clip_norm), "mechanism.gradient_clipping")
    if drops or mechanism.decay is Decay.INSIDE:
        return dict.fromkeys(grad_norms, clip)
    return {name: tightest(bound, clip) for name, bound in grad_norms.items()}


def clipped_groups(
    groups: tuple[Group, ...], mechanism: Mechanism | None, *, drops: bool = False
) -> tuple[Group, ...]:
    """Groups as the mechanism releases them, given those that the network bounds.

    A flat clip bounds all parameters jointly by C, and says no more of any part: they are one
    group. A clip per group bounds each of K groups by C/√K, hence all of them by C.
    """
    if not isinstance(mechanism, GradientClipping) or not groups:
        return groups
    clip = Upper(mechanism.clip_norm)
    alone = drops or mechanism.decay is Decay.INSIDE
    if mechanism.scope is ClipScope.FLAT:
        joint = root_sum_square(group.grad_norm for group in groups)
        parameters = tuple(p for group in groups for p in group.parameters)
        return (Group("all", parameters, clip if alone else min(clip, joint)),)
    share = clip.over(Lower(float(len(groups))).sqrt())
    return tuple(
        replace(group, grad_norm=share if alone else min(share, group.grad_norm))
        for group in groups
    )
