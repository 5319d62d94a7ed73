"""Release: sensitivities and noise of what each training step gives away.

What enters: parameter groups with their gradient bounds, and the settings. What leaves: the
sensitivity of every group and the noise of the three allocations at equal effective multiplier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from lipcert.analysis.groups import Group
from lipcert.privacy.noise import (
    Allocated,
    Allocation,
    GroupNoise,
    Neighbouring,
    NoiseGroup,
    Reduction,
    allocate,
    sensitivity,
)
from lipcert.settings.settings import Settings
from lipcert.upper import Upper, root_sum_square


def planned_sensitivity(grad_norm: Upper, settings: Settings) -> Upper:
    """Sensitivity of a released gradient under the neighbouring and reduction of the settings."""
    return sensitivity(
        grad_norm,
        Neighbouring(settings.neighbours),
        Reduction(settings.reduction),
        settings.batch_size,
    )


@final
@dataclass(frozen=True, slots=True)
class Release:
    """Sensitivities and noise of what each step releases. multiplier: σ of all groups together."""

    groups: tuple[NoiseGroup, ...]
    multiplier: float
    sensitivities: Mapping[str, Upper]
    allocated: Mapping[Allocation, Allocated | None]
    chosen: Allocation

    @classmethod
    def of(cls, groups: Sequence[NoiseGroup], settings: Settings, multiplier: float) -> Release:
        """The three allocations of the noise at multiplier σ, and a custom one where declared."""
        allocated = {
            way: allocate(groups, multiplier, way)
            for way in Allocation
            if way is not Allocation.CUSTOM or settings.noise_multipliers
        }
        sensitivities = {group.name: group.sensitivity for group in groups}
        chosen = Allocation(settings.allocation)
        return cls(tuple(groups), multiplier, sensitivities, allocated, chosen)

    @property
    def total_sensitivity(self) -> Upper:
        """√Σ Δ² over the groups: what one example can move of the whole release."""
        return root_sum_square(self.sensitivities.values())

    def noise(self, group: str) -> GroupNoise | None:
        """Noise of one group under the chosen allocation; None where a bound is absent."""
        allocated = self.allocated[self.chosen]
        if allocated is None:
            return None
        return next(noise for noise in allocated.groups if noise.name == group)


def noise_groups_of(groups: tuple[Group, ...], settings: Settings) -> list[NoiseGroup]:
    """The groups as `privacy.noise` takes them."""
    return [
        NoiseGroup(
            group.name,
            group.dimension,
            planned_sensitivity(group.grad_norm, settings),
            settings.noise_weight(group.name),
        )
        for group in groups
    ]
