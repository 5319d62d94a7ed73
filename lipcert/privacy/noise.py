"""Noise: from the sensitivities of groups of parameters to the noise N(0, s_k²·I) on each of them.

Invariant: the groups of one step are released from *one* sample of examples, so they are one
Gaussian mechanism, with effective multiplier (Σ_k Δ_k²/s_k²)^(−1/2). Every allocation here makes
it at least σ, in real arithmetic: each s_k is the formula's value rounded up. So all allocations
cost the same privacy and differ only in noise energy Σ_k d_k·s_k².
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce

from lipcert.core.arithmetic import (
    add_up,
    divide_down,
    divide_up,
    multiply_up,
    sqrt_down,
    sqrt_up,
)
from lipcert.core.claims import total_sensitivity
from lipcert.errors import UsageError
from lipcert.settings.values import check_positive


class Neighbouring(Enum):
    """When two data sets count as neighbours."""

    ADD_OR_REMOVE_ONE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"
    """One example contributes nothing, and the batches stay as they are."""

    @property
    def moved(self) -> float:
        """How many per-example gradients neighbours differ by: Δ over the bound of one."""
        return 2.0 if self is Neighbouring.REPLACE_ONE else 1.0


class Reduction(Enum):
    """What is released of the gradients of a batch; a mean divides by a *public constant*."""

    MEAN = "mean"
    SUM = "sum"


class Allocation(Enum):
    """How the noise is split over the groups, at equal effective multiplier σ.

    With Δ_k the sensitivity, d_k the dimension of group k, and K groups of positive sensitivity:
    """

    GLOBAL = "global"
    """s_k = σ·√Σ_j Δ_j², the same everywhere"""
    PER_LAYER = "per-layer"
    """s_k = σ·Δ_k·√K"""
    OPTIMAL = "optimal"
    """s_k² = σ²·(Δ_k/√d_k)·Σ_j Δ_j·√d_j, the least noise energy"""
    CUSTOM = "custom"
    """s_k = σ·Δ_k·w_k·√Σ_j 1/w_j², for weights w_k of the user's; per-layer for equal ones"""


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters noised together, in all `dimension` numbers, and what is known of them so far.

    Bounds are rounded up, and infinite if unknown. sensitivity: how far one example can move what
    is released of them. weight: the multiplier of this group relative to the others, in a custom
    allocation. parameters: their names. grad_norm: bound of their joint gradient for one example.
    noise_std: standard deviation of the noise on each number, infinite until some is allocated;
    energy_share: the group's share of the energy of all noise.
    """

    name: str
    dimension: int
    sensitivity: float = math.inf
    weight: float = 1.0
    parameters: tuple[str, ...] = ()
    grad_norm: float = math.inf
    noise_std: float = math.inf
    energy_share: float | None = None

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise ValueError(f"noise group {self.name!r} has no parameters")
        bounds = (self.sensitivity, self.grad_norm, self.noise_std)
        if not all(bound >= 0.0 for bound in bounds):
            raise ValueError(f"bounds are non-negative numbers, and not {bounds}")
        if not (math.isfinite(self.weight) and self.weight > 0.0):
            raise UsageError(
                f"noise-multipliers: {self.weight!r} for {self.name!r} is not a positive finite "
                "number"
            )


@dataclass(frozen=True, slots=True)
class Allocated:
    """The groups, each with its noise. energy: Σ_k d_k·s_k²."""

    groups: tuple[Group, ...]
    energy: float


def allocate(
    groups: Sequence[Group], noise_multiplier: float, allocation: Allocation
) -> Allocated | None:
    """Return noise whose effective multiplier is at least `noise_multiplier`.

    The result is None if a group has no sensitivity bound (or the noise overflows): then no noise
    makes the release private.
    Hypotheses: all groups are released from one sample.
    Proof: Σ Δ_k²/s_k² at the exact formulas is Σ Δ_k²/(σ²ΣΔ_j²), Σ 1/(σ²K),
    Σ Δ_k√d_k/(σ²ΣΔ_j√d_j) and Σ w_k⁻²/(σ²Σw_j⁻²), each 1/σ²; rounding s_k up only lowers it. A
    group with Δ_k = 0 reveals nothing and needs none. By Cauchy–Schwarz (ΣΔ_k√d_k)² ≤
    Σ d_k s_k²·Σ Δ_k²/s_k², so no allocation has less energy than the optimal one, σ²(ΣΔ_k√d_k)².
    """
    check_positive("noise-multiplier", noise_multiplier)
    stds = [multiply_up(noise_multiplier, unit) for unit in _unit_noise(groups, allocation)]
    energies = [
        multiply_up(multiply_up(group.dimension, std), std)
        for group, std in zip(groups, stds, strict=True)
    ]
    energy = _total(energies)
    if not math.isfinite(energy):
        return None
    noised = (
        replace(group, noise_std=std, energy_share=part / energy if energy else 0.0)
        for group, std, part in zip(groups, stds, energies, strict=True)
    )
    return Allocated(tuple(noised), energy)


def _unit_noise(groups: Sequence[Group], allocation: Allocation) -> list[float]:
    """Return the noise per group for σ = 1."""
    deltas = [group.sensitivity for group in groups]
    match allocation:
        case Allocation.GLOBAL:
            return [total_sensitivity(deltas)] * len(groups)
        case Allocation.PER_LAYER:
            root = sqrt_up(float(sum(delta > 0.0 for delta in deltas)))
            return [multiply_up(delta, root) for delta in deltas]
        case Allocation.OPTIMAL:
            sizes = [group.dimension for group in groups]
            weight = _total(
                multiply_up(delta, sqrt_up(size)) for delta, size in zip(deltas, sizes, strict=True)
            )
            return [
                sqrt_up(multiply_up(divide_up(delta, sqrt_down(size)), weight))
                for delta, size in zip(deltas, sizes, strict=True)
            ]
        case Allocation.CUSTOM:
            inverse = _inverse_weights(groups)
            return [
                multiply_up(multiply_up(group.sensitivity, group.weight), inverse)
                for group in groups
            ]


def joint_multiplier(groups: Sequence[Group]) -> float | None:
    """Return the multiplier (Σ 1/w_k²)^(−1/2) of noise w_k·Δ_k, rounded down.

    The result is None if there is nothing to hide.
    """
    inverse = _inverse_weights(groups)
    return divide_down(1.0, inverse) if inverse else None


def _inverse_weights(groups: Sequence[Group]) -> float:
    """Return √Σ 1/w_k² over the groups that reveal anything."""
    return total_sensitivity(
        divide_up(1.0, group.weight) for group in groups if group.sensitivity > 0.0
    )


def _total(bounds: Iterable[float]) -> float:
    return reduce(add_up, bounds, 0.0)
