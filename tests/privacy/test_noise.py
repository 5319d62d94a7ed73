"""Sensitivities and noise allocations, against exact rational arithmetic and a numeric optimum."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lipcert.core.claims import effective_multiplier, sensitivity_up
from lipcert.errors import UsageError
from lipcert.privacy.noise import (
    Allocation,
    Group,
    Neighbouring,
    Reduction,
    allocate,
    joint_multiplier,
)

ADD_REMOVE, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE

deltas = st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.floats(1e-140, 1e-120))
group_lists = st.lists(
    st.builds(
        lambda dimension, delta: Group("group", dimension, delta), st.integers(1, 10**7), deltas
    ),
    min_size=1,
    max_size=8,
)
multipliers = st.floats(1e-3, 1e3)


def groups_of(*pairs: tuple[int, float]) -> list[Group]:
    return [Group(str(i), d, delta) for i, (d, delta) in enumerate(pairs)]


def allocated(groups, sigma: float, allocation: Allocation):
    return allocate(groups, sigma, allocation)


def stds(result) -> list[float]:
    return [group.noise_std for group in result.groups]


@pytest.mark.parametrize("neighbouring", Neighbouring)
@pytest.mark.parametrize("reduction", Reduction)
def test_released_sums_move_by_no_more(neighbouring: Neighbouring, reduction: Reduction) -> None:
    """Gradients on the sphere of radius G; the worst neighbour attains the sensitivity."""
    rng = np.random.default_rng(0)
    batch, radius = 8, 1.5
    divisor = batch if reduction is Reduction.MEAN else 1
    delta = sensitivity_up(radius, batch if reduction.value == "mean" else None, neighbouring.value)
    worst = 0.0
    for _ in range(200):
        gradients = rng.normal(size=(batch, 3))
        gradients *= radius / np.linalg.norm(gradients, axis=1, keepdims=True)
        neighbour = gradients[1:].copy()
        if neighbouring is REPLACE:
            neighbour = np.concatenate([neighbour, -gradients[:1]])
        moved = (gradients.sum(0) - neighbour.sum(0)) / divisor
        worst = max(worst, float(np.linalg.norm(moved)))
    assert worst <= delta * (1 + 1e-12)
    assert worst == pytest.approx(delta)


@given(group_lists, multipliers, st.sampled_from(Allocation))
def test_effective_multiplier_holds_exactly(
    groups: list[Group], sigma: float, allocation: Allocation
) -> None:
    """Σ Δ_k²/s_k² ≤ 1/σ² in rational arithmetic, for the very doubles that are returned."""
    result = allocated(groups, sigma, allocation)
    leak = Fraction(0)
    for group, std in zip(groups, stds(result), strict=True):
        if group.sensitivity > 0.0:
            leak += (Fraction(group.sensitivity) / Fraction(std)) ** 2
    assert leak <= 1 / Fraction(sigma) ** 2
    if leak:
        assert float(1 / leak) == pytest.approx(sigma**2, rel=1e-12)


@given(group_lists, multipliers, st.sampled_from(Allocation))
def test_energy_and_shares(groups: list[Group], sigma: float, allocation: Allocation) -> None:
    result = allocated(groups, sigma, allocation)
    parts = [
        group.dimension * Fraction(std) ** 2
        for group, std in zip(groups, stds(result), strict=True)
    ]
    assert sum(parts) <= Fraction(result.energy)
    assert result.energy == pytest.approx(float(sum(parts)), rel=1e-12, abs=1e-300)
    shares = sum(group.energy_share for group in result.groups)
    assert shares == pytest.approx(1.0 if result.energy > 0.0 else 0.0)


def test_formulas() -> None:
    groups = groups_of((100, 3.0), (10000, 4.0))
    assert stds(allocated(groups, 2.0, Allocation.GLOBAL)) == [10.0, 10.0]
    local = stds(allocated(groups, 2.0, Allocation.PER_LAYER))
    assert local == pytest.approx([6.0 * math.sqrt(2.0), 8.0 * math.sqrt(2.0)])
    weight = 3.0 * 10.0 + 4.0 * 100.0
    best = stds(allocated(groups, 2.0, Allocation.OPTIMAL))
    assert best == pytest.approx([2 * math.sqrt(0.3 * weight), 2 * math.sqrt(0.04 * weight)])
    energy = allocated(groups, 2.0, Allocation.OPTIMAL).energy
    assert energy == pytest.approx(4.0 * weight**2)


def test_optimal_agrees_with_a_numeric_optimum() -> None:
    groups = groups_of((10, 1.0), (500, 0.2), (3, 7.0), (80, 0.5))
    dimension = np.array([group.dimension for group in groups], dtype=float)
    delta = np.array([group.sensitivity for group in groups])

    def energy(logs: np.ndarray) -> float:
        squares = np.exp(logs)
        squares *= np.sum(delta**2 / squares)  # rescaled to effective multiplier 1
        return math.log(float(dimension @ squares))

    found = minimize(energy, np.zeros(4), method="BFGS", options={"gtol": 1e-10})
    result = allocated(groups, 1.0, Allocation.OPTIMAL)
    assert math.exp(found.fun) == pytest.approx(result.energy, rel=1e-8)


def test_insensitive_groups_need_no_noise_of_their_own() -> None:
    groups = groups_of((5, 0.0), (8, 2.0), (1000, 0.0))
    for allocation in (Allocation.PER_LAYER, Allocation.OPTIMAL):
        assert stds(allocated(groups, 1.0, allocation)) == pytest.approx([0.0, 2.0, 0.0])
    assert stds(allocated(groups, 1.0, Allocation.GLOBAL)) == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("allocation", Allocation)
def test_an_absent_bound_leaves_no_mechanism(allocation: Allocation) -> None:
    groups = [*groups_of((5, 1.0), (5, 0.0)), Group("unbounded", 3, math.inf)]
    assert allocate(groups, 1.0, allocation) is None


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_noise_multiplier_is_checked(sigma: float) -> None:
    with pytest.raises(UsageError, match="noise-multiplier"):
        allocate(groups_of((1, 1.0)), sigma, Allocation.GLOBAL)


@pytest.mark.parametrize(
    ("size", "bound", "says"),
    [(0, 1.0, "no parameters"), *((1, x, "non-negative") for x in (-1.0, math.nan, -math.inf))],
)
def test_a_group_holds_parameters_and_has_a_bound(size: int, bound: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Group("g", size, bound)


@pytest.mark.parametrize("layers", [2, 4, 8])
def test_naive_noise_per_layer_loses_a_factor_root_k(layers: int) -> None:
    """s_k = σ·Δ_k on K groups is a release with multiplier σ/√K, not σ."""
    sensitivities = [0.5 + k for k in range(layers)]
    found = effective_multiplier(sensitivities, sensitivities)
    assert found == pytest.approx(1.0 / math.sqrt(layers), rel=1e-12)
    assert found <= 1.0 / math.sqrt(layers)


@given(group_lists, multipliers, st.data())
def test_a_custom_split_has_the_same_joint_multiplier(groups, sigma, data) -> None:
    weighted = [replace(group, weight=data.draw(multipliers)) for group in groups]
    result = allocate(weighted, sigma, Allocation.CUSTOM)
    if result is None:
        return
    noised = [
        (group, noise.noise_std)
        for group, noise in zip(weighted, result.groups, strict=True)
        if group.sensitivity > 0.0 and noise.noise_std > 1e-100
    ]
    for group, std in noised:
        first, first_std = noised[0]
        expected = group.weight / first.weight
        found = std / group.sensitivity / (first_std / first.sensitivity)
        assert found == pytest.approx(expected, rel=1e-12)


def test_the_multipliers_of_groups_make_one() -> None:
    groups = [Group("a", 3, 1.0, 2.0), Group("b", 5, 7.0, 3.0)]
    joint = joint_multiplier([*groups, Group("silent", 5, 0.0, 1e-9)])
    assert joint == pytest.approx((1 / 4 + 1 / 9) ** -0.5, rel=1e-12)
    assert stds(allocated(groups, joint, Allocation.CUSTOM)) == pytest.approx([2.0, 21.0])
    with pytest.raises(UsageError, match=r"noise-multipliers.*'a'"):
        Group("a", 3, 1.0, 0.0)
