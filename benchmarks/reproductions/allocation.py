"""Béthune et al. (2024), Section 2.2: global and local noise, and what neither reaches, at equal ε.

What enters: sensitivities and sizes of groups. What leaves: the noise energy Σ d·s² of the three
allocations at the same joint multiplier, hence at the same ε.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from benchmarks.reproductions.rows import Row
from lipcert.privacy.noise import Allocation, Group, allocate

__all__ = ["rows"]

Groups = tuple[tuple[float, int], ...]
CASES: Final[Mapping[str, Groups]] = MappingProxyType(
    {
        "equal layers": ((1.0, 100),) * 4,
        "two convolutions, two dense layers": ((3.0, 144), (3.0, 4608), (1.0, 9216), (1.0, 320)),
        "gradients that grow towards the input": (
            (8.0, 1000),
            (4.0, 1000),
            (2.0, 1000),
            (1.0, 1000),
        ),
    }
)


def rows() -> Iterator[Row]:
    """The better of the published two over the optimal one."""
    for name, groups in CASES.items():
        both = energy(groups, Allocation.GLOBAL), energy(groups, Allocation.PER_LAYER)
        best = energy(groups, Allocation.OPTIMAL)
        yield Row(
            f"noise energy at equal ε, {name}",
            "–",
            f"global {both[0] / best:.2f}, local {both[1] / best:.2f}, "
            f"the better of them {min(both) / best:.2f} times the optimal one",
        )


def energy(groups: Groups, allocation: Allocation) -> float:
    """Σ d·s² for σ = 1."""
    noised = [
        Group(f"layer {k}", size, sensitivity) for k, (sensitivity, size) in enumerate(groups)
    ]
    found = allocate(noised, 1.0, allocation)
    if found is None:
        raise RuntimeError("finite sensitivities have finite noise")
    return found.energy
