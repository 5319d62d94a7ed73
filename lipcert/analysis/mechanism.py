"""The mechanism of a planned run: its description, and what it makes of a gradient bound.

What enters: the settings, groups with the bounds of the network. What leaves: a `Mechanism`, and
groups with the bounds of the run, after the clips that the core takes account of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lipcert.analysis.groups import Group
from lipcert.core.claims import clipped_group
from lipcert.core.ledger import Premises
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
from lipcert.upper import Upper, root_sum_square


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


def clipped_groups(
    groups: tuple[Group, ...], premises: Premises, *, lasts: bool
) -> tuple[Group, ...]:
    """Groups as the mechanism releases them, given those that the network bounds.

    A flat clip bounds all parameters jointly, and says no more of any part: they are one group.
    lasts: whether bounds of the network hold at every step that is spoken of, as it is trained.
    """
    if premises.clip is None or not groups:
        return groups
    if premises.clip[1] == "flat":
        joint = root_sum_square(group.grad_norm for group in groups)
        groups = (Group("all", tuple(p for group in groups for p in group.parameters), joint),)
    return tuple(
        replace(
            group,
            grad_norm=Upper(
                clipped_group(group.grad_norm.value, len(groups), premises, lasts=lasts)
            ),
        )
        for group in groups
    )
